#pragma once

#include <memory>
#include <string>

#include "ops/cuda/runtime/device_context.h"
#include "ops/cuda/plugin.h"

namespace espalier {

KernelStatus NewNcclId(std::string* id_bytes);

// Work goes to the context's stream. Null with *error on failure.
std::unique_ptr<CudaCommunicator> CreateNcclCommunicator(DeviceContext& context,
                                                         const std::string& id_bytes, int rank,
                                                         int size, std::string* error);

}  // namespace espalier
