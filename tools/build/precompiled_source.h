#pragma once

namespace espalier {

// Returns true if gcc used precompiled.h.gch for a source of an ordinary cc_library.
bool SourceIsPrecompiled();

}  // namespace espalier
