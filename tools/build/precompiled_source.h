#pragma once

namespace espalier {

// Whether gcc took precompiled.h.gch for a source of an ordinary cc_library.
bool SourceIsPrecompiled();

}  // namespace espalier
