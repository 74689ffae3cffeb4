#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ops/cuda/runtime/device_context.h"
#include "ops/cuda/runtime/plugin.h"

namespace espalier {

KernelStatus NewNcclId(std::string* id_bytes);

// Creates a communicator on the context's stream. See CudaPlugin::CreateCommunicator.
std::unique_ptr<CudaCommunicator> CreateNcclCommunicator(DeviceContext& context,
                                                         const std::string& id_bytes, int rank,
                                                         int size,
                                                         const std::function<bool()>& go_on,
                                                         std::string* error);

}  // namespace espalier
