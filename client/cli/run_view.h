// Shows a run and the names of its values to people.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <string>

#include "client/terminal/terminal.h"
#include "espalier/v1/recording.pb.h"

namespace espalier {

// A line for each of the run's data, optimizer, learning rate, batch, plan, time and owner.
std::string RenderRunFacts(const v1::Recording& run, const Terminal& terminal);

// A table of the run's checkpoints, and what they take.
std::string RenderCheckpoints(const v1::Recording& run, const Terminal& terminal);

// "12, 5.2 MiB"; empty: there are no copies.
std::string DescribeCopies(const v1::Recording& run);

// A table of what probes can ask for.
std::string RenderRunValues(const google::protobuf::RepeatedPtrField<v1::RunValue>& values,
                            const Terminal& terminal);

}  // namespace espalier
