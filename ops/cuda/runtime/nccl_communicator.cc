#include "ops/cuda/runtime/nccl_communicator.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/nccl_status.h"

namespace espalier {
namespace {

bool NcclType(DType dtype, ncclDataType_t* type) {
  switch (dtype) {
    case DType::kF32:
      *type = ncclFloat32;
      return true;
    case DType::kF16:
      *type = ncclFloat16;
      return true;
    case DType::kBF16:
      *type = ncclBfloat16;
      return true;
    case DType::kI32:
      *type = ncclInt32;
      return true;
    case DType::kI64:
      *type = ncclInt64;
      return true;
    case DType::kI8:
      *type = ncclInt8;
      return true;
    case DType::kU8:
      *type = ncclUint8;
      return true;
    default:
      return false;
  }
}

class NcclCommunicator : public CudaCommunicator {
 public:
  NcclCommunicator(ncclComm_t comm, cudaStream_t stream, int size)
      : comm_(comm), stream_(stream), size_(size) {}
  ~NcclCommunicator() override {
    ncclComm_t comm = comm_.exchange(nullptr);
    if (comm != nullptr) ncclCommDestroy(comm);
  }

  KernelStatus Send(const void* data, int64_t bytes, int peer) override {
    return Call("send", [&](ncclComm_t comm) {
      return ncclSend(data, static_cast<size_t>(bytes), ncclUint8, peer, comm, stream_);
    });
  }
  KernelStatus Receive(void* data, int64_t bytes, int peer) override {
    return Call("receive", [&](ncclComm_t comm) {
      return ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, peer, comm, stream_);
    });
  }
  KernelStatus AllReduceSum(DType dtype, const void* input, void* output, int64_t count) override {
    ncclDataType_t type;
    if (!NcclType(dtype, &type)) return BadType("all-reduce", dtype);
    return Call("all-reduce", [&](ncclComm_t comm) {
      return ncclAllReduce(input, output, static_cast<size_t>(count), type, ncclSum, comm, stream_);
    });
  }
  KernelStatus AllGather(const void* input, void* output, int64_t bytes) override {
    return Call("all-gather", [&](ncclComm_t comm) {
      return ncclAllGather(input, output, static_cast<size_t>(bytes), ncclUint8, comm, stream_);
    });
  }
  KernelStatus ReduceScatterSum(DType dtype, const void* input, void* output,
                                int64_t count) override {
    ncclDataType_t type;
    if (!NcclType(dtype, &type)) return BadType("reduce-scatter", dtype);
    return Call("reduce-scatter", [&](ncclComm_t comm) {
      return ncclReduceScatter(input, output, static_cast<size_t>(count), type, ncclSum, comm,
                               stream_);
    });
  }
  KernelStatus AllToAll(const void* input, void* output, int64_t bytes) override {
    return Call("all-to-all", [&](ncclComm_t comm) {
      const size_t part = static_cast<size_t>(bytes);
      ncclResult_t result = ncclGroupStart();
      for (int peer = 0; peer < size_ && result == ncclSuccess; ++peer) {
        result = ncclSend(static_cast<const char*>(input) + peer * part, part, ncclUint8, peer,
                          comm, stream_);
        if (result != ncclSuccess) break;
        result = ncclRecv(static_cast<char*>(output) + peer * part, part, ncclUint8, peer, comm,
                          stream_);
      }
      // Ends the group even if a call inside it failed.
      const ncclResult_t ended = ncclGroupEnd();
      return result != ncclSuccess ? result : ended;
    });
  }
  KernelStatus Broadcast(void* data, int64_t bytes) override {
    return Call("broadcast", [&](ncclComm_t comm) {
      return ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclUint8, 0, comm, stream_);
    });
  }

  void Abort() override {
    ncclComm_t comm = comm_.exchange(nullptr);
    if (comm != nullptr) ncclCommAbort(comm);
  }
  KernelStatus AsyncError() override {
    ncclComm_t comm = comm_.load();
    if (comm == nullptr) return Aborted();
    ncclResult_t error = ncclSuccess;
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        NcclStatus(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError"));
    return NcclStatus(error == ncclInProgress ? ncclSuccess : error, "asynchronous error");
  }

 private:
  static KernelStatus Aborted() { return KernelStatus::Error("the NCCL communicator was aborted"); }
  static KernelStatus BadType(const char* what, DType dtype) {
    return KernelStatus::Error(std::string(what) + ": element type " + Name(dtype) +
                               " cannot be summed");
  }

  template <typename Function>
  KernelStatus Call(const char* what, const Function& function) {
    ncclComm_t comm = comm_.load();
    if (comm == nullptr) return Aborted();
    return NcclStatus(function(comm), what);
  }

  std::atomic<ncclComm_t> comm_;
  const cudaStream_t stream_;
  const int size_;
};

}  // namespace

KernelStatus NewNcclId(std::string* id_bytes) {
  ncclUniqueId id;
  ESPALIER_KERNEL_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId"));
  id_bytes->assign(id.internal, sizeof(id.internal));
  return KernelStatus::Ok();
}

std::unique_ptr<CudaCommunicator> CreateNcclCommunicator(DeviceContext& context,
                                                         const std::string& id_bytes, int rank,
                                                         int size, std::string* error) {
  ncclUniqueId id;
  if (id_bytes.size() != sizeof(id.internal)) {
    *error = "a communicator id has " + std::to_string(sizeof(id.internal)) + " bytes, not " +
             std::to_string(id_bytes.size());
    return nullptr;
  }
  std::memcpy(id.internal, id_bytes.data(), sizeof(id.internal));
  ncclComm_t comm = nullptr;
  const KernelStatus made = NcclStatus(ncclCommInitRank(&comm, size, id, rank), "ncclCommInitRank");
  if (!made.ok()) {
    *error = made.error;
    return nullptr;
  }
  return std::make_unique<NcclCommunicator>(comm, context.stream(), size);
}

}  // namespace espalier
