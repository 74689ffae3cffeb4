#include <cstring>

#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"

namespace espalier {
namespace {

int64_t IdAt(const TensorView& ids, int64_t i) {
  return ids.dtype() == DType::kI64 ? ids.as<int64_t>()[i] : ids.as<int32_t>()[i];
}

// Where a shard of the weight's rows lies in the whole table.
struct Rows {
  int64_t offset, count, vocabulary;
};

Rows RowsOfTable(const TensorSpec& weight) {
  return {weight.offset.empty() ? 0 : weight.offset[0], weight.dims[0],
          weight.global.empty() ? weight.dims[0] : weight.global[0]};
}

KernelStatus CheckIds(const TensorView& ids, int64_t vocabulary) {
  const int64_t n = ids.num_elements();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t id = IdAt(ids, i);
    if (id >= 0 && id < vocabulary) continue;
    return KernelStatus::Error("embedding: ids[" + std::to_string(i) + "] is " +
                               std::to_string(id) + ", expected 0 to " +
                               std::to_string(vocabulary - 1) + " because 'weight' has " +
                               std::to_string(vocabulary) + " rows");
  }
  return KernelStatus::Ok();
}

// Copies rows whatever their type; a shard of the table gives zeros for ids that it does not hold.
std::unique_ptr<Kernel> MakeForward(const KernelSpec&, std::string*) {
  return MakeKernel([](const KernelArgs& args) {
    const TensorView& ids = args.inputs[0];
    const TensorView& weight = args.inputs[1];
    const Rows rows = RowsOfTable(weight.spec);
    if (KernelStatus status = CheckIds(ids, rows.vocabulary); !status.ok()) return status;
    const size_t bytes = weight.dims()[1] * SizeOf(weight.dtype());
    const char* table = static_cast<const char*>(weight.data);
    char* y = static_cast<char*>(args.outputs[0].data);
    ParallelRanges(ids.num_elements(), weight.dims()[1], [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = IdAt(ids, i) - rows.offset;
        if (row >= 0 && row < rows.count) {
          std::memcpy(y + i * bytes, table + row * bytes, bytes);
        } else {
          std::memset(y + i * bytes, 0, bytes);
        }
      }
    });
    return KernelStatus::Ok();
  });
}

// ids, dy -> dweight. Threads share the table's rows; each adds the gradients of its own in the
// order of the ids.
std::unique_ptr<Kernel> MakeBackward(const KernelSpec&, std::string*) {
  return MakeKernel([](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    const TensorView& ids = args.inputs[0];
    const float* dy = args.inputs[1].as<float>();
    float* dweight = args.outputs[0].as<float>();
    const Rows rows = RowsOfTable(args.outputs[0].spec);
    if (KernelStatus status = CheckIds(ids, rows.vocabulary); !status.ok()) return status;
    const int64_t width = args.outputs[0].dims()[1], n = ids.num_elements();
    const int64_t work = width * (1 + n / std::max<int64_t>(1, rows.count));
    ParallelRanges(rows.count, work, [&](int64_t begin, int64_t end) {
      std::fill(dweight + begin * width, dweight + end * width, 0.0f);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = IdAt(ids, i) - rows.offset;
        if (row < begin || row >= end) continue;
        float* to = dweight + row * width;
        const float* from = dy + i * width;
        for (int64_t j = 0; j < width; ++j) to[j] += from[j];
      }
    });
    return KernelStatus::Ok();
  });
}

}  // namespace

void RegisterEmbeddingCpu(KernelRegistry& registry) {
  registry.Add("embedding", MakeForward);
  registry.Add("embedding_grad", ViaF32(MakeBackward));
}

}  // namespace espalier
