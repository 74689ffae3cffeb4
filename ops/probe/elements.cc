#include "ops/probe/elements.h"

#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"

namespace espalier::probe {
namespace {

absl::Status BadBoxes(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("parts of a probe: ", what));
}

Dims DimsOf(const google::protobuf::RepeatedField<int64_t>& dims) {
  return {dims.begin(), dims.end()};
}

std::string BoxText(const v1::ProbePart::Box& box) {
  return absl::StrCat(ToString(DimsOf(box.values().dims())), " at ",
                      ToString(DimsOf(box.offset())));
}

bool Overlap(const v1::ProbePart::Box& a, const v1::ProbePart::Box& b) {
  for (int d = 0; d < a.offset_size(); ++d) {
    if (a.offset(d) + a.values().dims(d) <= b.offset(d) ||
        b.offset(d) + b.values().dims(d) <= a.offset(d)) {
      return false;
    }
  }
  return true;
}

bool InsideTensor(const v1::ProbePart::Box& box, const Dims& global) {
  const auto rank = static_cast<int>(global.size());
  if (box.offset_size() != rank || box.values().dims_size() != rank) return false;
  for (int d = 0; d < rank; ++d) {
    if (box.offset(d) < 0 || box.values().dims(d) < 0 || box.values().dims(d) > global[d] ||
        box.offset(d) > global[d] - box.values().dims(d)) {
      return false;
    }
  }
  return true;
}

template <typename Sum>
void AddTo(const TensorView& view, const GlobalIndex& index, std::vector<Sum>* sums) {
  int64_t i = 0;
  if constexpr (std::is_same_v<Sum, int64_t>) {
    if (view.dtype() == DType::kI64) {
      for (; i < view.num_elements(); ++i) {
        // As the tensors' own sums, it wraps.
        int64_t& sum = (*sums)[static_cast<size_t>(index.Of(i))];
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) +
                                   static_cast<uint64_t>(view.as<int64_t>()[i]));
      }
      return;
    }
  }
  ForElements(
      view, [&](double x) { (*sums)[static_cast<size_t>(index.Of(i++))] += static_cast<Sum>(x); });
}

template <typename Stored, typename Sum, typename Convert>
void Store(const std::vector<Sum>& sums, Convert convert, std::string* out) {
  std::vector<Stored> stored(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) stored[i] = convert(sums[i]);
  out->assign(reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(Stored));
}

void StoreSums(DType dtype, const std::vector<double>& sums, std::string* out) {
  switch (dtype) {
    case DType::kF16:
      return Store<uint16_t>(
          sums, [](double x) { return F32ToF16(static_cast<float>(x)); }, out);
    case DType::kBF16:
      return Store<uint16_t>(
          sums, [](double x) { return F32ToBF16(static_cast<float>(x)); }, out);
    default:
      return Store<float>(
          sums, [](double x) { return static_cast<float>(x); }, out);
  }
}

void StoreSums(DType dtype, const std::vector<int64_t>& sums, std::string* out) {
  switch (SizeOf(dtype)) {
    case 1:
      return Store<uint8_t>(
          sums, [](int64_t x) { return static_cast<uint8_t>(x); }, out);
    case 4:
      return Store<int32_t>(
          sums, [](int64_t x) { return static_cast<int32_t>(x); }, out);
    default:
      return Store<int64_t>(
          sums, [](int64_t x) { return x; }, out);
  }
}

}  // namespace

double Element(const TensorView& view, int64_t index) {
  TensorView one = view;
  one.data = view.as<char>() + index * static_cast<int64_t>(SizeOf(view.dtype()));
  one.spec.dims = {1};
  double value = 0;
  ForElements(one, [&](double x) { value = x; });
  return value;
}

absl::Status CheckParts(const std::vector<v1::ProbePart>& parts, bool adds_up) {
  if (parts.empty()) return BadBoxes("there are none");
  const Dims global = DimsOf(parts[0].dims());
  int64_t elements = 1;
  for (const int64_t d : global) {
    if (d < 0 || (d > 0 && elements > std::numeric_limits<int64_t>::max() / 8 / d)) {
      return BadBoxes(absl::StrCat("dimensions ", ToString(global)));
    }
    elements *= d;
  }
  if (FromProto(parts[0].dtype()) == DType::kInvalid) return BadBoxes("of no element type");
  std::vector<const v1::ProbePart::Box*> boxes;
  int64_t covered = 0;
  for (const v1::ProbePart& part : parts) {
    if (part.dtype() != parts[0].dtype() || DimsOf(part.dims()) != global) {
      return BadBoxes(absl::StrCat("they are of ", ToString(global), " and ",
                                   ToString(DimsOf(part.dims())), ", or of two element types"));
    }
    for (const v1::ProbePart::Box& box : part.boxes()) {
      if (!InsideTensor(box, global)) {
        return BadBoxes(absl::StrCat(BoxText(box), " is not within ", ToString(global)));
      }
      const int64_t volume = NumElements(DimsOf(box.values().dims()));
      if (volume == 0) continue;
      if (!adds_up && covered > elements - volume) {
        return BadBoxes(absl::StrCat("they have more elements than the tensor's ", elements));
      }
      covered += adds_up ? 0 : volume;
      boxes.push_back(&box);
    }
  }
  if (adds_up) return absl::OkStatus();
  if (covered != elements) {
    return BadBoxes(
        absl::StrCat("they have ", covered, " of the tensor's ", elements, " elements"));
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(*boxes[i], *boxes[j])) {
        return BadBoxes(absl::StrCat(BoxText(*boxes[j]), " and ", BoxText(*boxes[i]), " overlap"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::TensorValue> Assemble(const std::vector<v1::ProbePart>& parts, bool adds_up) {
  const Dims global = DimsOf(parts[0].dims());
  const DType dtype = FromProto(parts[0].dtype());
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  const int64_t elements = NumElements(global);
  v1::TensorValue whole;
  whole.set_dtype(parts[0].dtype());
  whole.mutable_dims()->Assign(global.begin(), global.end());
  // The data was not sent by this process: sizes are checked before anything is allocated.
  int64_t held = 0;
  for (const v1::ProbePart& part : parts) {
    for (const v1::ProbePart::Box& box : part.boxes()) {
      const int64_t volume = NumElements(DimsOf(box.values().dims()));
      if (box.values().dtype() != parts[0].dtype() ||
          static_cast<int64_t>(box.values().data().size()) != volume * size) {
        return BadBoxes(absl::StrCat(BoxText(box), " has ", box.values().data().size(),
                                     " bytes, not ", volume, " elements of ", Name(dtype)));
      }
      held += volume;
    }
  }
  if (held < elements) {
    return BadBoxes(absl::StrCat("they have at most ", held, " of ", elements, " elements"));
  }
  const bool floats = IsFloat(dtype);
  std::vector<double> sums(adds_up && floats ? elements : 0);
  std::vector<int64_t> counts(adds_up && !floats ? elements : 0);
  std::vector<char> seen(adds_up ? elements : 0);
  std::string& data = *whole.mutable_data();
  if (!adds_up) data.resize(static_cast<size_t>(elements * size));
  for (const v1::ProbePart& part : parts) {
    for (const v1::ProbePart::Box& box : part.boxes()) {
      const Dims dims = DimsOf(box.values().dims());
      const int64_t volume = NumElements(dims);
      if (volume == 0) continue;
      const GlobalIndex index(DimsOf(box.offset()), dims, global);
      if (adds_up) {
        // Copied, as bytes of a message are not aligned.
        std::vector<double> aligned(static_cast<size_t>(volume * size + 7) / 8);
        std::memcpy(aligned.data(), box.values().data().data(), box.values().data().size());
        const TensorView view{aligned.data(), TensorSpec::Whole({dtype, dims})};
        floats ? AddTo(view, index, &sums) : AddTo(view, index, &counts);
        for (int64_t i = 0; i < volume; ++i) seen[static_cast<size_t>(index.Of(i))] = 1;
        continue;
      }
      const int64_t row = dims.empty() ? 1 : dims.back();
      for (int64_t i = 0; i < volume; i += row) {
        std::memcpy(data.data() + index.Of(i) * size, box.values().data().data() + i * size,
                    static_cast<size_t>(row * size));
      }
    }
  }
  if (adds_up) {
    if (const auto hole = std::find(seen.begin(), seen.end(), 0); hole != seen.end()) {
      return BadBoxes(absl::StrCat("none has element ", hole - seen.begin()));
    }
    floats ? StoreSums(dtype, sums, &data) : StoreSums(dtype, counts, &data);
  }
  return whole;
}

}  // namespace espalier::probe
