#include "server/http/open_inference/infer_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"

namespace espalier {
namespace {

using Json = nlohmann::json;

constexpr char kBinarySize[] = "binary_data_size", kBinary[] = "binary_data",
               kBinaryOutput[] = "binary_data_output", kTimeout[] = "timeout";
// Booleans are no numbers.
constexpr JsonLimits kInferJson = {
    .depth = 64, .fields_of_object = 64, .fields = 1 << 14, .values_but_numbers = 1 << 22};

absl::Status At(const std::string& place, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("field '", place, "' ", problem));
}

absl::Status CheckFields(const Json& object, const std::string& place,
                         const std::vector<const char*>& known) {
  for (const auto& [name, value] : object.items()) {
    const bool found = std::any_of(known.begin(), known.end(),
                                   [&name = name](const char* k) { return name == k; });
    if (found) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("field '", place, name.substr(0, 100), "' is not known"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Text(const Json& object, const std::string& place, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return At(place + name, "is missing");
  if (!found->is_string()) return At(place + name, "is no string");
  return found->get<std::string>();
}

// The object "parameters", whose names are among `known`; empty if there is none.
absl::StatusOr<Json> Parameters(const Json& object, const std::string& place,
                                const std::vector<const char*>& known) {
  const auto found = object.find("parameters");
  if (found == object.end()) return Json::object();
  if (!found->is_object()) return At(place + "parameters", "is no object");
  for (const auto& [name, value] : found->items()) {
    const bool is_known = std::any_of(known.begin(), known.end(),
                                      [&name = name](const char* k) { return name == k; });
    if (!is_known) return UnknownParameter(name);
  }
  return *found;
}

absl::StatusOr<bool> Flag(const Json& parameters, const char* name, bool otherwise) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return otherwise;
  if (!found->is_boolean()) return At(name, "is no boolean");
  return found->get<bool>();
}

template <typename To>
bool AppendInteger(const Json& value, std::string* data) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<To>::max())) {
    return false;
  }
  const auto number = value.get<int64_t>();
  if (!value.is_number_unsigned() && (number < int64_t{std::numeric_limits<To>::min()} ||
                                      number > int64_t{std::numeric_limits<To>::max()})) {
    return false;
  }
  const To element = static_cast<To>(number);
  data->append(reinterpret_cast<const char*>(&element), sizeof element);
  return true;
}

bool AppendElement(const Json& value, DType dtype, std::string* data) {
  switch (dtype) {
    case DType::kBool:
      if (!value.is_boolean()) return false;
      data->push_back(value.get<bool>() ? 1 : 0);
      return true;
    case DType::kF32: {
      if (!value.is_number()) return false;
      const auto number = value.get<double>();
      const auto element = static_cast<float>(number);
      if (std::isinf(element)) return false;
      data->append(reinterpret_cast<const char*>(&element), sizeof element);
      return true;
    }
    case DType::kI8:
      return AppendInteger<int8_t>(value, data);
    case DType::kU8:
      return AppendInteger<uint8_t>(value, data);
    case DType::kI32:
      return AppendInteger<int32_t>(value, data);
    case DType::kI64:
      return AppendInteger<int64_t>(value, data);
    default:
      return false;
  }
}

// Appends an array, nested or flat. The depth was limited when the text was parsed.
bool AppendElements(const Json& array, DType dtype, std::string* data) {
  return std::all_of(array.begin(), array.end(), [&](const Json& value) {
    return value.is_array() ? AppendElements(value, dtype, data)
                            : AppendElement(value, dtype, data);
  });
}

absl::StatusOr<std::vector<int64_t>> Shape(const Json& object, const std::string& place) {
  const auto found = object.find("shape");
  if (found == object.end()) return At(place + "shape", "is missing");
  std::vector<int64_t> shape;
  bool good = found->is_array();
  for (size_t i = 0; good && i < found->size(); ++i) {
    const Json& dim = (*found)[i];
    good = dim.is_number_integer() && dim.get<int64_t>() >= 0;
    if (good) shape.push_back(dim.get<int64_t>());
  }
  if (!good) return At(place + "shape", "is no array of whole numbers, 0 or more");
  return shape;
}

// Reads one input; binary data is taken from the beginning of `binary`.
absl::StatusOr<InferTensor> ParseInput(const Json& object, const std::string& place,
                                       absl::string_view* binary) {
  if (!object.is_object()) return At(place, "is no object");
  const std::string fields = place + ".";
  absl::Status known =
      CheckFields(object, fields, {"name", "datatype", "shape", "parameters", "data"});
  if (!known.ok()) return known;
  InferTensor tensor;
  absl::StatusOr<std::string> name = Text(object, fields, "name");
  if (!name.ok()) return name.status();
  absl::StatusOr<std::string> datatype = Text(object, fields, "datatype");
  if (!datatype.ok()) return datatype.status();
  absl::StatusOr<std::vector<int64_t>> shape = Shape(object, fields);
  if (!shape.ok()) return shape.status();
  const absl::StatusOr<DType> dtype = DTypeOfDatatype(*datatype);
  if (!dtype.ok()) return At(fields + "datatype", absl::StrCat(": ", dtype.status().message()));
  absl::StatusOr<Json> parameters = Parameters(object, fields, {kBinarySize});
  if (!parameters.ok()) return parameters.status();
  tensor.name = *std::move(name);
  tensor.datatype = *std::move(datatype);
  tensor.shape = *std::move(shape);
  const auto data = object.find("data");
  const auto size = parameters->find(kBinarySize);
  if ((data == object.end()) == (size == parameters->end())) {
    return At(place, absl::StrCat("of input '", tensor.name.substr(0, 100),
                                  "' needs its 'data', or the parameter binary_data_size and its "
                                  "bytes behind the JSON"));
  }
  if (size != parameters->end()) {
    if (!size->is_number_unsigned() || size->get<uint64_t>() > binary->size()) {
      return At(fields + "parameters." + kBinarySize,
                absl::StrCat("is no number of bytes, of which ", binary->size(),
                             " are left behind the JSON and the inputs before"));
    }
    tensor.data = std::string(binary->substr(0, size->get<size_t>()));
    binary->remove_prefix(size->get<size_t>());
    return tensor;
  }
  if (*dtype == DType::kF16 || *dtype == DType::kBF16) {
    return At(fields + "data", absl::StrCat("cannot hold ", tensor.datatype,
                                            "; send it as binary data (binary_data_size)"));
  }
  if (!data->is_array() || !AppendElements(*data, *dtype, &tensor.data)) {
    return At(fields + "data",
              absl::StrCat("of input '", tensor.name.substr(0, 100),
                           "' is no array of values that ", tensor.datatype, " holds"));
  }
  return tensor;
}

absl::Status ParseRequestParameters(const Json& object, InferBody* body) {
  absl::StatusOr<Json> parameters = Parameters(object, "", {kTimeout, kBinaryOutput});
  if (!parameters.ok()) return parameters.status();
  const absl::StatusOr<bool> binary = Flag(*parameters, kBinaryOutput, false);
  if (!binary.ok()) return binary.status();
  body->binary = *binary;
  const auto timeout = parameters->find(kTimeout);
  if (timeout == parameters->end()) return absl::OkStatus();
  if (!timeout->is_number_unsigned() ||
      timeout->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return At(kTimeout, "is no number of microseconds, 0 (none) or more");
  }
  if (const auto us = timeout->get<int64_t>(); us > 0) body->call.timeout = absl::Microseconds(us);
  return absl::OkStatus();
}

absl::Status ParseOutputs(const Json& object, InferBody* body) {
  const auto outputs = object.find("outputs");
  if (outputs == object.end()) return absl::OkStatus();
  if (!outputs->is_array()) return At("outputs", "is no array");
  for (size_t i = 0; i < outputs->size(); ++i) {
    const std::string place = absl::StrCat("outputs[", i, "].");
    const Json& output = (*outputs)[i];
    if (!output.is_object()) return At(absl::StrCat("outputs[", i, "]"), "is no object");
    if (absl::Status s = CheckFields(output, place, {"name", "parameters"}); !s.ok()) return s;
    absl::StatusOr<std::string> name = Text(output, place, "name");
    if (!name.ok()) return name.status();
    absl::StatusOr<Json> parameters = Parameters(output, place, {kBinary});
    if (!parameters.ok()) return parameters.status();
    const absl::StatusOr<bool> binary = Flag(*parameters, kBinary, body->binary);
    if (!binary.ok()) return binary.status();
    body->call.outputs.push_back(*std::move(name));
    body->binary_outputs.push_back(*binary);
  }
  return absl::OkStatus();
}

// Appends a number as short as it reads back as the same.
template <typename T>
void AppendNumber(const char* at, std::string* out) {
  T value;
  std::memcpy(&value, at, sizeof value);
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out->append(text, end);
}

absl::Status AppendData(const InferTensor& tensor, std::string* out) {
  const DType dtype = DTypeOfDatatype(tensor.datatype).value_or(DType::kInvalid);
  if (dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kInvalid) {
    return absl::FailedPreconditionError(
        absl::StrCat("output '", tensor.name, "' is ", tensor.datatype,
                     ", which JSON cannot hold; ask for binary_data"));
  }
  const size_t size = SizeOf(dtype);
  for (size_t at = 0; at < tensor.data.size(); at += size) {
    if (at > 0) out->push_back(',');
    const char* element = tensor.data.data() + at;
    switch (dtype) {
      case DType::kBool:
        absl::StrAppend(out, *element != 0 ? "true" : "false");
        break;
      case DType::kI8:
        absl::StrAppend(out, static_cast<int>(static_cast<int8_t>(*element)));
        break;
      case DType::kU8:
        absl::StrAppend(out, static_cast<int>(static_cast<uint8_t>(*element)));
        break;
      case DType::kI32:
        AppendNumber<int32_t>(element, out);
        break;
      case DType::kI64:
        AppendNumber<int64_t>(element, out);
        break;
      default: {
        float value = 0;
        std::memcpy(&value, element, sizeof value);
        if (!std::isfinite(value)) {
          return absl::FailedPreconditionError(
              absl::StrCat("output '", tensor.name,
                           "' has a value that is not finite, which JSON "
                           "cannot hold; ask for binary_data"));
        }
        AppendNumber<float>(element, out);
      }
    }
  }
  return absl::OkStatus();
}

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<InferBody> ParseInferBody(absl::string_view body, std::optional<size_t> json_bytes) {
  if (json_bytes.value_or(0) > body.size()) {
    return absl::InvalidArgumentError(absl::StrCat("header '", kInferHeaderLength, "' is ",
                                                   *json_bytes, "; the body has ", body.size(),
                                                   " bytes"));
  }
  absl::string_view binary = body.substr(json_bytes.value_or(body.size()));
  std::string twice;
  const absl::StatusOr<Json> parsed =
      ParseBoundedJson<Json>(body.substr(0, body.size() - binary.size()), kInferJson, &twice);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the body ", parsed.status().message()));
  }
  if (!twice.empty()) return At(twice.substr(0, 100), "is given twice");
  if (!parsed->is_object()) return absl::InvalidArgumentError("the body is no JSON object");
  absl::Status known = CheckFields(*parsed, "", {"id", "parameters", "inputs", "outputs"});
  if (!known.ok()) return known;
  InferBody request;
  if (parsed->contains("id")) {
    absl::StatusOr<std::string> id = Text(*parsed, "", "id");
    if (!id.ok()) return id.status();
    request.id = *std::move(id);
  }
  if (absl::Status s = ParseRequestParameters(*parsed, &request); !s.ok()) return s;
  const auto inputs = parsed->find("inputs");
  if (inputs == parsed->end() || !inputs->is_array())
    return At("inputs", "is missing, or no array");
  for (size_t i = 0; i < inputs->size(); ++i) {
    absl::StatusOr<InferTensor> input =
        ParseInput((*inputs)[i], absl::StrCat("inputs[", i, "]"), &binary);
    if (!input.ok()) return input.status();
    request.call.inputs.push_back(*std::move(input));
  }
  if (!binary.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the body has ", binary.size(),
                                                   " bytes behind the JSON that no input's "
                                                   "binary_data_size counts"));
  }
  if (absl::Status s = ParseOutputs(*parsed, &request); !s.ok()) return s;
  return request;
}

absl::StatusOr<InferAnswer> FormatInferAnswer(const std::string& model, const std::string& version,
                                              const std::string& id,
                                              const std::vector<InferTensor>& outputs,
                                              const std::vector<bool>& binary) {
  std::string text =
      absl::StrCat(R"({"model_name":)", Quoted(model), R"(,"model_version":)", Quoted(version));
  if (!id.empty()) absl::StrAppend(&text, R"(,"id":)", Quoted(id));
  absl::StrAppend(&text, R"(,"outputs":[)");
  bool any = false;
  for (size_t o = 0; o < outputs.size(); ++o) {
    const InferTensor& output = outputs[o];
    absl::StrAppend(&text, o > 0 ? "," : "", R"({"name":)", Quoted(output.name), R"(,"datatype":)",
                    Quoted(output.datatype), R"(,"shape":)", Json(output.shape).dump());
    if (binary[o]) {
      any = true;
      absl::StrAppend(&text, R"(,"parameters":{")", kBinarySize, R"(":)", output.data.size(), "}}");
      continue;
    }
    absl::StrAppend(&text, R"(,"data":[)");
    if (absl::Status s = AppendData(output, &text); !s.ok()) return s;
    absl::StrAppend(&text, "]}");
  }
  absl::StrAppend(&text, "]}");
  InferAnswer answer{std::move(text), std::nullopt};
  if (!any) return answer;
  answer.json_bytes = answer.body.size();
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (binary[o]) answer.body += outputs[o].data;
  }
  return answer;
}

}  // namespace espalier
