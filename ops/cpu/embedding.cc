// embedding: rows of a table by id; embedding_bag: sums of several rows.
#include <algorithm>
#include <cstring>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/threading/parallel.h"

namespace espalier {
namespace {

int64_t IdAt(const TensorView& ids, int64_t i) {
  return ids.dtype() == DType::kI64 ? ids.as<int64_t>()[i] : ids.as<int32_t>()[i];
}

// The position of a shard of the weight's rows in the whole table.
struct Rows {
  int64_t offset, count, vocabulary;
};

Rows RowsOfTable(const TensorSpec& weight) {
  return {weight.offset.empty() ? 0 : weight.offset[0], weight.dims[0],
          weight.global.empty() ? weight.dims[0] : weight.global[0]};
}

KernelStatus CheckIds(const char* op, const TensorView& ids, int64_t vocabulary) {
  const int64_t n = ids.num_elements();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t id = IdAt(ids, i);
    if (id >= 0 && id < vocabulary) continue;
    return KernelStatus::Error(std::string(op) + ": ids[" + std::to_string(i) + "] is " +
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
    KernelStatus status = CheckIds("embedding", ids, rows.vocabulary);
    if (!status.ok()) return status;
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

// Bags of `length` ids; ids equal to `padding` are skipped.
struct Bags {
  int64_t count, length;
  int64_t padding = -1;
  bool average = false;

  // Returns the factor of each row of bag b.
  float Share(const TensorView& ids, int64_t b) const {
    if (!average) return 1.0f;
    int64_t counted = 0;
    for (int64_t i = b * length; i < (b + 1) * length; ++i) counted += IdAt(ids, i) != padding;
    return counted > 0 ? 1.0f / static_cast<float>(counted) : 0.0f;
  }
};

Bags BagsOf(const Attributes& attributes, const Dims& ids) {
  Bags bags{1, ids.back(), attributes.Int("padding_index", -1),
            attributes.String("mode") == "average"};
  for (size_t d = 0; d + 1 < ids.size(); ++d) bags.count *= ids[d];
  return bags;
}

std::unique_ptr<Kernel> MakeBagForward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    const TensorView &ids = args.inputs[0], &weight = args.inputs[1];
    const Bags bags = BagsOf(attributes, ids.dims());
    const Rows rows = RowsOfTable(weight.spec);
    KernelStatus status = CheckIds("embedding_bag", ids, rows.vocabulary);
    if (!status.ok()) return status;
    const int64_t width = weight.dims()[1];
    ParallelRanges(bags.count, bags.length * width, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float* y = args.outputs[0].as<float>() + b * width;
        std::fill(y, y + width, 0.0f);
        for (int64_t i = b * bags.length; i < (b + 1) * bags.length; ++i) {
          const int64_t id = IdAt(ids, i), row = id - rows.offset;
          if (id == bags.padding || row < 0 || row >= rows.count) continue;
          const float* from = weight.as<float>() + row * width;
          for (int64_t j = 0; j < width; ++j) y[j] += from[j];
        }
        const float share = bags.Share(ids, b);
        for (int64_t j = 0; j < width; ++j) y[j] *= share;
      }
    });
    return KernelStatus::Ok();
  });
}

// dweight[id] += share * dy[bag]. Threads split the table's rows; each adds the gradients of its
// rows in the order of the ids.
KernelStatus AddRows(const char* op, const Bags& bags, const TensorView& ids, const TensorView& dy,
                     const TensorView& dweight) {
  const Rows rows = RowsOfTable(dweight.spec);
  KernelStatus status = CheckIds(op, ids, rows.vocabulary);
  if (!status.ok()) return status;
  const int64_t width = dweight.dims()[1], n = bags.count * bags.length;
  const int64_t units = width * (rows.count + n);
  const int64_t threads = std::min<int64_t>(MaxThreads(), units / kParallelGrain + 1);
  // One block per thread: every block scans all ids.
  const int64_t block = std::max<int64_t>(1, (rows.count + threads - 1) / threads);
  ParallelBlocks(rows.count, block, [&](int64_t begin, int64_t end) {
    std::fill(dweight.as<float>() + begin * width, dweight.as<float>() + end * width, 0.0f);
    for (int64_t b = 0; b < bags.count; ++b) {
      const float share = bags.Share(ids, b);
      const float* from = dy.as<float>() + b * width;
      for (int64_t i = b * bags.length; i < (b + 1) * bags.length; ++i) {
        const int64_t id = IdAt(ids, i), row = id - rows.offset;
        if (row < begin || row >= end || id == bags.padding) continue;
        float* to = dweight.as<float>() + row * width;
        for (int64_t j = 0; j < width; ++j) to[j] += share * from[j];
      }
    }
  });
  return KernelStatus::Ok();
}

// ids, dy -> dweight
std::unique_ptr<Kernel> MakeBackward(const KernelSpec&, std::string*) {
  return MakeKernel([](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    return AddRows("embedding", {args.inputs[0].num_elements(), 1}, args.inputs[0], args.inputs[1],
                   args.outputs[0]);
  });
}

std::unique_ptr<Kernel> MakeBagBackward(const KernelSpec& spec, std::string*) {
  return MakeKernel([attributes = spec.attributes](const KernelArgs& args) {
    if (!args.outputs[0].present()) return KernelStatus::Ok();
    return AddRows("embedding_bag", BagsOf(attributes, args.inputs[0].dims()), args.inputs[0],
                   args.inputs[1], args.outputs[0]);
  });
}

}  // namespace

void RegisterEmbeddingCpu(KernelRegistry& registry) {
  registry.Add("embedding", MakeForward);
  registry.Add("embedding_grad", ViaF32(MakeBackward));
  registry.Add("embedding_bag", ViaF32(MakeBagForward));
  registry.Add("embedding_bag_grad", ViaF32(MakeBagBackward));
}

}  // namespace espalier
