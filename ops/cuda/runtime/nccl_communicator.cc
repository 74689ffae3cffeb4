#include "ops/cuda/runtime/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
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

// Waits a little while NCCL goes on by itself: a call is enqueued within microseconds, by a thread
// of NCCL; the first ones of a group connect its ranks, which takes longer.
class Pause {
 public:
  void operator()() const {
    if (std::chrono::steady_clock::now() - begin_ < std::chrono::milliseconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The state of a communicator that does not block.
ncclResult_t StateOf(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return asked != ncclSuccess ? asked : state;
}

// The communicator does not block: NCCL's calls return at once, with ncclInProgress while it still
// connects the ranks, so that Abort can come in between.
class NcclCommunicator : public CudaCommunicator {
 public:
  NcclCommunicator(ncclComm_t comm, cudaStream_t stream, int size)
      : comm_(comm), stream_(stream), size_(size) {}
  ~NcclCommunicator() override {
    if (comm_ != nullptr) ncclCommDestroy(comm_);
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
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  }
  KernelStatus AsyncError() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    const ncclResult_t state = StateOf(comm_);
    return NcclStatus(state == ncclInProgress ? ncclSuccess : state, "asynchronous error");
  }

 private:
  static KernelStatus Aborted() { return KernelStatus::Error("the NCCL communicator was aborted"); }
  static KernelStatus BadType(const char* what, DType dtype) {
    return KernelStatus::Error(std::string(what) + ": element type " + Name(dtype) +
                               " cannot be summed");
  }

  template <typename Function>
  KernelStatus Call(const char* what, const Function& function) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return Aborted();
    ncclResult_t result = function(comm_);
    const Pause pause;
    while (result == ncclInProgress) {
      lock.unlock();
      pause();
      lock.lock();
      if (comm_ == nullptr) return Aborted();
      result = StateOf(comm_);
    }
    return NcclStatus(result, what);
  }

  std::mutex mutex_;  // Abort frees what calls use
  ncclComm_t comm_;   // null after Abort
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
                                                         int size,
                                                         const std::function<bool()>& go_on,
                                                         std::string* error) {
  ncclUniqueId id;
  if (id_bytes.size() != sizeof(id.internal)) {
    *error = "a communicator id has " + std::to_string(sizeof(id.internal)) + " bytes, not " +
             std::to_string(id_bytes.size());
    return nullptr;
  }
  std::memcpy(id.internal, id_bytes.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  bool waits = true;
  const Pause pause;
  while (result == ncclInProgress && (waits = go_on())) {
    pause();
    result = StateOf(comm);
  }
  KernelStatus made = waits ? NcclStatus(result, "ncclCommInitRankConfig")
                            : KernelStatus::Error("not all ranks of the group have joined");
  if (!made.ok()) {
    if (comm != nullptr) ncclCommAbort(comm);
    *error = std::move(made.error);
    return nullptr;
  }
  return std::make_unique<NcclCommunicator>(comm, context.stream(), size);
}

}  // namespace espalier
