#include "server/inference/services/infer_proto.h"

#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

absl::Status In(const std::string& input, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("input '", input.substr(0, 100), "': ", problem));
}

// Appends the elements as type To. Returns false for one that To cannot hold.
template <typename To, typename Elements>
bool Append(const Elements& elements, std::string* data) {
  data->reserve(static_cast<size_t>(elements.size()) * sizeof(To));
  for (const auto element : elements) {
    const To value = static_cast<To>(element);
    if constexpr (std::is_integral_v<To>) {
      if (static_cast<decltype(element)>(value) != element) return false;
    }
    data->append(reinterpret_cast<const char*>(&value), sizeof(To));
  }
  return true;
}

// The number of fields of `contents` that hold elements.
int FieldsSet(const inference::InferTensorContents& contents) {
  return (contents.bool_contents_size() > 0) + (contents.int_contents_size() > 0) +
         (contents.int64_contents_size() > 0) + (contents.uint_contents_size() > 0) +
         (contents.uint64_contents_size() > 0) + (contents.fp32_contents_size() > 0) +
         (contents.fp64_contents_size() > 0) + (contents.bytes_contents_size() > 0);
}

absl::StatusOr<std::string> DataOf(const std::string& input, DType dtype,
                                   const inference::InferTensorContents& contents) {
  std::string data;
  bool fits = true;
  const char* field = "";
  int elements = 0;
  switch (dtype) {
    case DType::kBool:
      field = "bool_contents", elements = contents.bool_contents_size();
      fits = Append<uint8_t>(contents.bool_contents(), &data);
      break;
    case DType::kI8:
      field = "int_contents", elements = contents.int_contents_size();
      fits = Append<int8_t>(contents.int_contents(), &data);
      break;
    case DType::kI32:
      field = "int_contents", elements = contents.int_contents_size();
      fits = Append<int32_t>(contents.int_contents(), &data);
      break;
    case DType::kI64:
      field = "int64_contents", elements = contents.int64_contents_size();
      fits = Append<int64_t>(contents.int64_contents(), &data);
      break;
    case DType::kU8:
      field = "uint_contents", elements = contents.uint_contents_size();
      fits = Append<uint8_t>(contents.uint_contents(), &data);
      break;
    case DType::kF32:
      field = "fp32_contents", elements = contents.fp32_contents_size();
      fits = Append<float>(contents.fp32_contents(), &data);
      break;
    default:
      return In(input,
                "FP16 and BF16 have no field of InferTensorContents; give "
                "raw_input_contents");
  }
  if (FieldsSet(contents) > (elements > 0 ? 1 : 0)) {
    return In(input, absl::StrCat("its contents are in another field than ", field,
                                  ", which its datatype has"));
  }
  if (!fits) return In(input, absl::StrCat(field, " has a value that its datatype cannot hold"));
  return data;
}

}  // namespace

absl::StatusOr<InferCall> TakeCall(inference::ModelInferRequest* request) {
  InferCall call;
  for (const auto& [name, value] : request->parameters()) {
    if (name != "timeout") return UnknownParameter(name);
    const bool is_signed = value.has_int64_param();
    if ((!is_signed && !value.has_uint64_param()) || (is_signed && value.int64_param() < 0) ||
        value.uint64_param() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return absl::InvalidArgumentError(
          "parameter 'timeout' is no number of microseconds, 0 (none) or more");
    }
    const int64_t timeout =
        is_signed ? value.int64_param() : static_cast<int64_t>(value.uint64_param());
    if (timeout > 0) call.timeout = absl::Microseconds(timeout);
  }
  const bool raw = request->raw_input_contents_size() > 0;
  if (raw && request->raw_input_contents_size() != request->inputs_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("raw_input_contents has ", request->raw_input_contents_size(), " entries for ",
                     request->inputs_size(), " inputs; give one per input, or none"));
  }
  for (int i = 0; i < request->inputs_size(); ++i) {
    auto* input = request->mutable_inputs(i);
    if (!input->parameters().empty()) return UnknownParameter(input->parameters().begin()->first);
    const absl::StatusOr<DType> dtype = DTypeOfDatatype(input->datatype());
    if (!dtype.ok()) return In(input->name(), std::string(dtype.status().message()));
    InferTensor tensor;
    if (raw) {
      if (FieldsSet(input->contents()) > 0) {
        return In(input->name(), "it has both contents and raw_input_contents; give one");
      }
      tensor.data = std::move(*request->mutable_raw_input_contents(i));
    } else {
      absl::StatusOr<std::string> data = DataOf(input->name(), *dtype, input->contents());
      if (!data.ok()) return data.status();
      tensor.data = *std::move(data);
    }
    tensor.name = std::move(*input->mutable_name());
    tensor.datatype = std::move(*input->mutable_datatype());
    tensor.shape.assign(input->shape().begin(), input->shape().end());
    call.inputs.push_back(std::move(tensor));
  }
  for (const auto& output : request->outputs()) {
    if (!output.parameters().empty()) return UnknownParameter(output.parameters().begin()->first);
    call.outputs.push_back(output.name());
  }
  return call;
}

void FillOutputs(std::vector<InferTensor> outputs, inference::ModelInferResponse* response) {
  for (InferTensor& output : outputs) {
    auto* described = response->add_outputs();
    described->set_name(std::move(output.name));
    described->set_datatype(std::move(output.datatype));
    described->mutable_shape()->Add(output.shape.begin(), output.shape.end());
    response->add_raw_output_contents(std::move(output.data));
  }
}

}  // namespace espalier
