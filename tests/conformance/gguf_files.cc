#include "tests/conformance/gguf_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

using nlohmann::json;

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void PutText(const std::string& text, std::string* out) {
  Put<uint64_t>(text.size(), out);
  out->append(text);
}

template <typename T>
T Get(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

void PutValue(const json& value, std::string* out) {
  const std::string type = value[0];
  const json& v = value[1];
  if (type == "UINT32") {
    Put<uint32_t>(4, out);
    Put(v.get<uint32_t>(), out);
  } else if (type == "FLOAT32") {
    Put<uint32_t>(6, out);
    Put(v.get<float>(), out);
  } else if (type == "BOOL") {
    Put<uint32_t>(7, out);
    Put<uint8_t>(v.get<bool>() ? 1 : 0, out);
  } else if (type == "STRING") {
    Put<uint32_t>(8, out);
    PutText(v.get<std::string>(), out);
  } else if (type == "STRINGS") {
    Put<uint32_t>(9, out);
    Put<uint32_t>(8, out);
    Put<uint64_t>(v.size(), out);
    for (const json& text : v) PutText(text.get<std::string>(), out);
  } else if (type == "ARRAY") {  // of bools
    Put<uint32_t>(9, out);
    Put<uint32_t>(7, out);
    Put<uint64_t>(v.size(), out);
    for (const json& flag : v) Put<uint8_t>(flag.get<bool>() ? 1 : 0, out);
  }
}

// Matrices whose rows are whole blocks; never routers, as llama.cpp has it.
bool IsQuantised(const std::string& name, const Dims& dims, uint32_t type) {
  const bool blocks = type == kGgmlQ8_0 || type == kGgmlQ4_0;
  return dims.size() > 1 && !absl::StrContains(name, "ffn_gate_inp") &&
         (!blocks || dims.back() % 32 == 0);
}

}  // namespace

std::string GgufBytes(uint32_t type, const std::vector<float>& values) {
  std::string out;
  if (type == kGgmlF32) {
    for (float v : values) Put(v, &out);
  } else if (type == kGgmlF16) {
    for (float v : values) Put(F32ToF16(v), &out);
  } else if (type == kGgmlBF16) {
    for (float v : values) Put(F32ToBF16(v), &out);
  } else {
    const bool eight = type == kGgmlQ8_0;
    for (size_t b = 0; b < values.size(); b += 32) {
      float largest = 0;
      for (size_t i = 0; i < 32; ++i) {
        if (std::fabs(values[b + i]) > std::fabs(largest)) largest = values[b + i];
      }
      const uint16_t scale = F32ToF16(eight ? std::fabs(largest) / 127 : largest / -8);
      const float unit = F16ToF32(scale);
      const auto rounded = [&](size_t i, float least, float most) {
        const float v = unit == 0 ? 0 : std::round(values[b + i] / unit);
        return static_cast<int>(std::clamp(v, least, most));
      };
      Put(scale, &out);
      for (size_t i = 0; eight && i < 32; ++i) {
        Put(static_cast<int8_t>(rounded(i, -127, 127)), &out);
      }
      for (size_t i = 0; !eight && i < 16; ++i) {
        const int low = rounded(i, -8, 7) + 8, high = rounded(i + 16, -8, 7) + 8;
        Put(static_cast<uint8_t>(low | high << 4), &out);
      }
    }
  }
  return out;
}

std::vector<float> GgufMeaning(uint32_t type, const std::string& bytes, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (type == kGgmlF32) {
      values[i] = Get<float>(bytes, 4 * i);
    } else if (type == kGgmlF16) {
      values[i] = F16ToF32(Get<uint16_t>(bytes, 2 * i));
    } else if (type == kGgmlBF16) {
      values[i] = BF16ToF32(Get<uint16_t>(bytes, 2 * i));
    } else if (type == kGgmlQ8_0) {
      const size_t block = i / 32 * 34;
      values[i] = F16ToF32(Get<uint16_t>(bytes, block)) *
                  static_cast<float>(Get<int8_t>(bytes, block + 2 + i % 32));
    } else {
      const size_t block = i / 32 * 18;
      const int two = Get<uint8_t>(bytes, block + 2 + i % 16);
      values[i] = F16ToF32(Get<uint16_t>(bytes, block)) *
                  static_cast<float>((i % 32 < 16 ? two & 15 : two >> 4) - 8);
    }
  }
  return values;
}

FamilyCase FamilyOf(const json& gguf_case, const std::vector<FamilyCase>& families) {
  const std::string family = gguf_case.at("family");
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const FamilyCase& c) { return c.name() == family; });
  FamilyCase made = *found;
  made.data["config"].update(gguf_case.at("config"));
  for (const json& name : gguf_case.at("without")) {
    made.data["tensors"].erase(name.get<std::string>());
  }
  for (json& spec : made.data["tensors"]) {
    for (json& extent : spec[0]) {
      for (const json& pair : gguf_case.at("widths")) {
        if (extent == pair[0]) {
          extent = pair[1];
          break;
        }
      }
    }
  }
  return made;
}

DrawnTensors DrawTensors(const FamilyCase& family) {
  DrawnTensors drawn;
  for (const auto& [name, spec] : family["tensors"].items()) {
    const Dims dims = spec[0].get<Dims>();
    drawn[name] = {
        dims, DrawValues(name, NumElements(dims), spec[1].get<double>(), spec[2].get<double>())};
  }
  return drawn;
}

std::vector<GgufEntry> GgufEntries(const json& gguf_case, const DrawnTensors& drawn,
                                   uint32_t type) {
  std::vector<GgufEntry> entries;
  for (const auto& [name, how] : gguf_case.at("tensors").items()) {
    DrawnTensor made;
    const json& from = how.at("from");
    for (const json& source : from) {
      const DrawnTensor& one = drawn.at(source.get<std::string>());
      made.dims = one.dims;
      made.values.insert(made.values.end(), one.values.begin(), one.values.end());
    }
    if (from.size() > 1) made.dims.insert(made.dims.begin(), static_cast<int64_t>(from.size()));
    if (how.contains("values")) {
      made.values = how["values"].get<std::vector<float>>();
      made.dims = {static_cast<int64_t>(made.values.size())};
    }
    const std::vector<float> before = made.values;
    const size_t rows = static_cast<size_t>(made.dims[0]), size = before.size() / rows;
    if (how.contains("rows")) {
      for (size_t r = 0; r < rows; ++r) {
        const size_t row = how["rows"][r].get<size_t>();
        std::copy_n(before.data() + row * size, size, made.values.data() + r * size);
      }
    }
    if (how.contains("transposed")) {
      std::swap(made.dims[0], made.dims[1]);
      for (size_t i = 0; i < before.size(); ++i) {
        made.values[i % size * rows + i / size] = before[i];
      }
    }
    if (how.contains("add")) {
      for (float& value : made.values) value += how["add"].get<float>();
    }
    const uint32_t its = IsQuantised(name, made.dims, type) ? type : kGgmlF32;
    entries.push_back({name, made.dims, its, GgufBytes(its, made.values)});
  }
  return entries;
}

DrawnTensors AsKept(const json& gguf_case, DrawnTensors drawn, uint32_t type) {
  for (const auto& [name, how] : gguf_case.at("tensors").items()) {
    for (const json& source : how.at("from")) {
      DrawnTensor& tensor = drawn.at(source.get<std::string>());
      if (!IsQuantised(name, tensor.dims, type)) continue;
      tensor.values = GgufMeaning(type, GgufBytes(type, tensor.values), tensor.values.size());
    }
  }
  return drawn;
}

std::string GgufFileOf(const json& metadata, const std::vector<GgufEntry>& tensors) {
  constexpr size_t kAlignment = 32;
  std::string out = "GGUF";
  Put<uint32_t>(3, &out);
  Put<uint64_t>(tensors.size(), &out);
  Put<uint64_t>(metadata.size(), &out);
  for (const auto& [key, value] : metadata.items()) {
    PutText(key, &out);
    PutValue(value, &out);
  }
  const auto aligned = [](size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; };
  uint64_t at = 0;
  for (const GgufEntry& tensor : tensors) {
    PutText(tensor.name, &out);
    Put<uint32_t>(static_cast<uint32_t>(tensor.dims.size()), &out);
    for (size_t d = tensor.dims.size(); d-- > 0;) {
      Put<uint64_t>(static_cast<uint64_t>(tensor.dims[d]), &out);
    }
    Put(tensor.type, &out);
    Put(at, &out);
    at += aligned(tensor.bytes.size());
  }
  for (const GgufEntry& tensor : tensors) {
    out.resize(aligned(out.size()));
    out += tensor.bytes;
  }
  return out;
}

}  // namespace espalier
