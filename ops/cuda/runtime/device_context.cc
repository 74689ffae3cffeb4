#include "ops/cuda/runtime/device_context.h"

#include <new>

#include "ops/cuda/runtime/cublas_status.h"
#include "ops/cuda/runtime/cuda_status.h"
#include "ops/cuda/runtime/cudnn_status.h"

namespace espalier {
namespace {

// The workspace size that cuBLAS recommends for Hopper.
constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;

std::string OutOfRange(const char* op, const FaultRecord& record) {
  return std::string(op) + ": index " + std::to_string(record.value) + " at position " +
         std::to_string(record.row) + " is out of range for " + std::to_string(record.limit) +
         " elements";
}

std::string Describe(const FaultRecord& record) {
  const std::string at = std::to_string(record.row);
  const std::string found = std::to_string(record.value);
  const std::string limit = std::to_string(record.limit);
  switch (record.kind) {
    case FaultKind::kEmbeddingId:
      return "embedding: id " + found + " at index " + at + " is out of range, expected 0 to " +
             std::to_string(record.limit - 1);
    case FaultKind::kGatherIndex:
      return OutOfRange("gather", record);
    case FaultKind::kGatherElementsIndex:
      return OutOfRange("gather_elements", record);
    case FaultKind::kGatherNdIndex:
      return OutOfRange("gather_nd", record);
    case FaultKind::kScatterElementsIndex:
      return OutOfRange("scatter_elements", record);
    case FaultKind::kScatterNdIndex:
      return OutOfRange("scatter_nd", record);
    case FaultKind::kSequenceLength:
      return "reverse_sequence: length " + found + " of sequence " + at +
             " is out of range, expected 0 to " + limit;
    case FaultKind::kLabel:
      return "label " + found + " in row " + at + " is out of range, expected 0 to " +
             std::to_string(record.limit - 1);
    case FaultKind::kPosition:
      return "rotary: position " + found + " of row " + at +
             " is out of range, expected at least 0";
    case FaultKind::kCacheSlot:
      return "paged_attention: cache slot " + found + " seen by row " + at +
             " is out of range, expected 0 to " + std::to_string(record.limit - 1);
    case FaultKind::kSequence:
      return "paged_attention: row " + at + " names " + found + ", beyond the limit of " + limit +
             " in its sequence tables";
    case FaultKind::kDivisor:
      return "divide: an integer is divided by zero (input 'b')";
    case FaultKind::kModulus:
      return "modulo: an integer is divided by zero (input 'b')";
    case FaultKind::kUnpoolIndex:
      return "max_unpool: index " + found + " at position " + at +
             " does not lie in the plane of its channel, which ends before " + limit;
    case FaultKind::kRecurrentLength:
      return "rnn, gru or lstm: length " + found + " of sample " + at +
             " is out of range, expected 0 to " + limit;
    case FaultKind::kExpert:
      return "group_by, aggregate or load_balance_loss: choice " + at + " names expert " + found +
             ", there are " + limit;
    case FaultKind::kAdapter:
      return "lora_linear: row " + at + " has adapter " + found + ", expected -1 to " +
             std::to_string(record.limit - 1);
    case FaultKind::kNone:
      break;
  }
  return "unknown fault";
}

}  // namespace

DeviceContext::~DeviceContext() {
  if (cublas_ != nullptr) cublasDestroy(cublas_);
  if (cudnn_ != nullptr) cudnnDestroy(cudnn_);
  if (cublas_workspace_ != nullptr) cudaFree(cublas_workspace_);
  if (arrivals_ != nullptr) cudaFree(arrivals_);
  if (faults_.claimed != nullptr) cudaFree(faults_.claimed);
  if (faults_.record != nullptr) cudaFreeHost(faults_.record);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

KernelStatus DeviceContext::Enter() {
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
  std::lock_guard<std::mutex> lock(mutex_);
  if (initialized_) return KernelStatus::Ok();
  ESPALIER_KERNEL_RETURN_IF_ERROR(Initialize());
  initialized_ = true;
  return KernelStatus::Ok();
}

KernelStatus DeviceContext::Initialize() {
  if (stream_ == nullptr) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  if (faults_.claimed == nullptr) {
    void* claimed = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&claimed, sizeof(int32_t)), "cudaMalloc"));
    faults_.claimed = static_cast<int32_t*>(claimed);
  }
  if (arrivals_ == nullptr) {
    void* arrivals = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&arrivals, kArrivals * sizeof(uint32_t)), "cudaMalloc"));
    arrivals_ = static_cast<uint32_t*>(arrivals);
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(arrivals_, 0, kArrivals * sizeof(uint32_t), stream_), "cudaMemsetAsync"));
  // Unified addressing: the pointer is the same on host and device.
  if (faults_.record == nullptr) {
    void* record = nullptr;
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
        cudaHostAlloc(&record, sizeof(FaultRecord), cudaHostAllocMapped), "cudaHostAlloc"));
    faults_.record = new (record) FaultRecord();
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(faults_.claimed, 0, sizeof(int32_t), stream_), "cudaMemsetAsync"));
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

KernelStatus DeviceContext::Cublas(void* stream, cublasHandle_t* handle) {
  if (cublas_ == nullptr) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(CublasStatus(cublasCreate(&cublas_), "cublasCreate"));
    const auto mode = static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CublasStatus(cublasSetMathMode(cublas_, mode), "cublasSetMathMode"));
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(
        cudaMalloc(&cublas_workspace_, kCublasWorkspaceBytes), "cudaMalloc of cuBLAS' workspace"));
  }
  // cublasSetStream also resets the workspace, so both are set together.
  if (cublas_stream_ != stream || stream == nullptr) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(CublasStatus(
        cublasSetStream(cublas_, static_cast<cudaStream_t>(stream)), "cublasSetStream"));
    ESPALIER_KERNEL_RETURN_IF_ERROR(
        CublasStatus(cublasSetWorkspace(cublas_, cublas_workspace_, kCublasWorkspaceBytes),
                     "cublasSetWorkspace"));
    cublas_stream_ = stream;
  }
  *handle = cublas_;
  return KernelStatus::Ok();
}

KernelStatus DeviceContext::Cudnn(void* stream, cudnnHandle_t* handle) {
  if (cudnn_ == nullptr) {
    ESPALIER_KERNEL_RETURN_IF_ERROR(CudnnStatus(cudnnCreate(&cudnn_), "cudnnCreate"));
  }
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudnnStatus(cudnnSetStream(cudnn_, static_cast<cudaStream_t>(stream)), "cudnnSetStream"));
  *handle = cudnn_;
  return KernelStatus::Ok();
}

KernelStatus DeviceContext::Synchronize() {
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "work on the GPU failed"));
  if (faults_.record->kind == FaultKind::kNone) return KernelStatus::Ok();
  const std::string message = Describe(*faults_.record);
  *faults_.record = FaultRecord();
  ESPALIER_KERNEL_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(faults_.claimed, 0, sizeof(int32_t), stream_), "cudaMemsetAsync"));
  return KernelStatus::Error(message);
}

KernelStatus DeviceContexts::At(int ordinal, DeviceContext** context) {
  if (ordinal < 0 || ordinal >= size()) {
    return KernelStatus::Error("there is no GPU " + std::to_string(ordinal) + ", only " +
                               std::to_string(size()));
  }
  *context = all_[ordinal].get();
  return KernelStatus::Ok();
}

KernelStatus DeviceContexts::Current(DeviceContext** context) {
  int ordinal = 0;
  ESPALIER_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&ordinal), "cudaGetDevice"));
  return At(ordinal, context);
}

}  // namespace espalier
