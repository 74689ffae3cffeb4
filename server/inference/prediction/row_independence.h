// Finds graphs whose answer for an example depends on the other examples of its pass.
#pragma once

#include <cstdint>
#include <string>

#include "server/inference/prediction/batch_runner.h"

namespace espalier {

// Runs passes of made-up examples, and returns an output of which a row changes when the other
// examples become copies of its own, or, unless the graph draws random numbers, of which the rows
// of such copies differ; empty if there is none. Integers may be indices, of which only some are
// good: an output is returned only if it mixes the examples whichever are tried. `batch`: examples
// of a pass, at most max_batch.
std::string OutputThatMixesExamples(BatchRunner& runner, int64_t batch, bool draws);

}  // namespace espalier
