// Names the fields of config.json that change no model's results.
#pragma once

#include "absl/strings/string_view.h"

namespace espalier {

// Whether a field of this name is about training, generation's defaults, the saving program,
// another part of a multimodal model or the way of computing the same values: nothing that changes
// the logits of a text model at inference.
bool IsNeutralField(absl::string_view field);

}  // namespace espalier
