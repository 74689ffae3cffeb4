#include "ops/cpu/dtype/convert.h"

#include <cmath>
#include <cstring>

#include "ops/cpu/threading/parallel.h"
#include "ops/cpu/threading/workspace.h"

namespace espalier {
namespace {

class ViaF32Kernel : public Kernel {
 public:
  ViaF32Kernel(std::unique_ptr<Kernel> inner, const KernelSpec& spec, std::vector<int> written)
      : inner_(std::move(inner)), written_(std::move(written)) {
    WorkspaceLayout layout;
    inner_offset_ = layout.Add(inner_->workspace_bytes());
    for (const TensorSpec& input : spec.inputs) offsets_.push_back(Reserve(input, &layout));
    for (const TensorSpec& output : spec.outputs) offsets_.push_back(Reserve(output, &layout));
    bytes_ = layout.bytes();
    inputs_.resize(spec.inputs.size());
    outputs_.resize(spec.outputs.size());
  }

  size_t workspace_bytes() const override { return bytes_; }

  KernelStatus Run(const KernelArgs& args) override {
    char* base = static_cast<char*>(args.workspace);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = args.inputs[i];
      if (!inputs_[i].present() || !IsNarrow(inputs_[i].dtype())) continue;
      float* copy = reinterpret_cast<float*>(base + offsets_[i]);
      ToF32(inputs_[i].dtype(), inputs_[i].data, copy, inputs_[i].num_elements());
      inputs_[i].data = copy;
      inputs_[i].spec.dtype = DType::kF32;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i] = args.outputs[i];
      if (!outputs_[i].present() || !IsNarrow(outputs_[i].dtype())) continue;
      outputs_[i].data = base + offsets_[inputs_.size() + i];
      outputs_[i].spec.dtype = DType::kF32;
    }
    KernelArgs inner_args = args;
    inner_args.inputs = inputs_;
    inner_args.outputs = outputs_;
    inner_args.workspace = base + inner_offset_;
    if (KernelStatus status = inner_->Run(inner_args); !status.ok()) return status;
    for (size_t i = 0; i < outputs_.size(); ++i) Store(outputs_[i], args.outputs[i]);
    for (int i : written_) Store(inputs_[i], args.inputs[i]);
    return KernelStatus::Ok();
  }

 private:
  static size_t Reserve(const TensorSpec& spec, WorkspaceLayout* layout) {
    return IsNarrow(spec.dtype) ? layout->Add(spec.num_elements() * sizeof(float)) : 0;
  }

  static void Store(const TensorView& wide, const TensorView& narrow) {
    if (!narrow.present() || !IsNarrow(narrow.dtype())) return;
    FromF32(narrow.dtype(), wide.as<float>(), narrow.data, narrow.num_elements());
  }

  std::unique_ptr<Kernel> inner_;
  std::vector<int> written_;
  size_t inner_offset_ = 0;
  std::vector<size_t> offsets_;  // of the copies: inputs, then outputs
  size_t bytes_ = 0;
  std::vector<TensorView> inputs_;
  std::vector<TensorView> outputs_;
};

}  // namespace

void ToF32(DType from, const void* source, float* destination, int64_t n) {
  ParallelRanges(n, 1, [&](int64_t begin, int64_t end) {
    if (from == DType::kF32) {
      std::memcpy(destination + begin, static_cast<const float*>(source) + begin,
                  (end - begin) * sizeof(float));
    } else if (from == DType::kBF16) {
      const uint16_t* in = static_cast<const uint16_t*>(source);
      for (int64_t i = begin; i < end; ++i) destination[i] = BF16ToF32(in[i]);
    } else {
      const uint16_t* in = static_cast<const uint16_t*>(source);
      for (int64_t i = begin; i < end; ++i) destination[i] = F16ToF32(in[i]);
    }
  });
}

void FromF32(DType to, const float* source, void* destination, int64_t n) {
  ParallelRanges(n, 1, [&](int64_t begin, int64_t end) {
    if (to == DType::kF32) {
      std::memcpy(static_cast<float*>(destination) + begin, source + begin,
                  (end - begin) * sizeof(float));
    } else if (to == DType::kBF16) {
      uint16_t* out = static_cast<uint16_t*>(destination);
      for (int64_t i = begin; i < end; ++i) out[i] = F32ToBF16(source[i]);
    } else {
      uint16_t* out = static_cast<uint16_t*>(destination);
      for (int64_t i = begin; i < end; ++i) out[i] = F32ToF16(source[i]);
    }
  });
}

KernelFactory ViaF32(KernelFactory inner, std::vector<int> written) {
  return [inner = std::move(inner), written = std::move(written)](
             const KernelSpec& spec, std::string* refusal) -> std::unique_ptr<Kernel> {
    KernelSpec wide = spec;
    bool narrow = false;
    for (std::vector<TensorSpec>* specs : {&wide.inputs, &wide.outputs}) {
      for (TensorSpec& tensor : *specs) {
        if (!IsNarrow(tensor.dtype)) continue;
        tensor.dtype = DType::kF32;
        narrow = true;
      }
    }
    if (!narrow) return inner(spec, refusal);
    std::unique_ptr<Kernel> kernel = inner(wide, refusal);
    if (kernel == nullptr) return nullptr;
    return std::make_unique<ViaF32Kernel>(std::move(kernel), spec, written);
  };
}

}  // namespace espalier
