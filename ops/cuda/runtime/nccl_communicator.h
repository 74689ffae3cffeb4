#pragma once

#include <memory>
#include <string>

#include "ops/cuda/runtime/device_context.h"
#include "ops/cuda/runtime/plugin.h"

namespace espalier {

KernelStatus NewNcclId(std::string* id_bytes);

// Creates a communicator on the context's stream. Returns null and sets *error on failure.
std::unique_ptr<CudaCommunicator> CreateNcclCommunicator(DeviceContext& context,
                                                         const std::string& id_bytes, int rank,
                                                         int size, std::string* error);

}  // namespace espalier
