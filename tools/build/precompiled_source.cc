#include "tools/build/precompiled_source.h"

namespace espalier {

bool SourceIsPrecompiled() {
#ifdef ESPALIER_SOURCE_PRECOMPILED
  return true;
#else
  return false;
#endif
}

}  // namespace espalier
