// `espalier predict`: outputs of a served graph for the examples of a file.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/column_flags.h"
#include "client/cli/command.h"
#include "client/cli/plan_view.h"
#include "client/terminal/table.h"
#include "storage/dataset.h"
#include "storage/npz_writer.h"

namespace espalier {
namespace {

using TensorMetadata = inference::ModelMetadataResponse::TensorMetadata;

// Of one request, and of its answer: well within a message.
constexpr int64_t kBytesPerRequest = 16 << 20;

constexpr std::pair<const char*, DType> kDatatypes[] = {
    {"BOOL", DType::kBool}, {"UINT8", DType::kU8}, {"INT8", DType::kI8},  {"INT32", DType::kI32},
    {"INT64", DType::kI64}, {"FP16", DType::kF16}, {"FP32", DType::kF32}, {"BF16", DType::kBF16}};

// The type of one example.
absl::StatusOr<TensorType> ExampleOf(const TensorMetadata& tensor) {
  for (const auto& [name, dtype] : kDatatypes) {
    if (tensor.datatype() != name) continue;
    return TensorType{dtype, {tensor.shape().begin() + 1, tensor.shape().end()}};
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor '", Printable(tensor.name()), "' is ",
                                                 Printable(tensor.datatype()),
                                                 ", which examples of a file cannot be"));
}

Dims WithoutOnes(Dims dims) {
  std::erase(dims, 1);
  return dims;
}

std::string TypeText(const TensorMetadata& tensor) {
  return absl::StrCat(tensor.datatype(), "[", absl::StrJoin(tensor.shape(), ", "), "]");
}

struct InputColumn {
  std::string input, datatype;
  TensorType example;
  const Column* column = nullptr;
};

// Finds each input's column and checks its shape.
absl::StatusOr<std::vector<InputColumn>> InputColumns(
    const inference::ModelMetadataResponse& model, const Dataset& data,
    const std::map<std::string, std::string>& named) {
  std::vector<InputColumn> inputs;
  std::vector<std::string> known;
  for (const TensorMetadata& tensor : model.inputs()) {
    known.push_back(tensor.name());
    const auto name = named.find(tensor.name());
    const std::string wanted = name == named.end() ? tensor.name() : name->second;
    absl::StatusOr<TensorType> example = ExampleOf(tensor);
    if (!example.ok()) return example.status();
    absl::StatusOr<const Column*> column = data.Find(wanted);
    if (!column.ok()) {
      return UsageError(absl::StrCat("input '", Printable(tensor.name()), "' ", TypeText(tensor),
                                     ": ", column.status().message(), "; name its column: --input ",
                                     Printable(tensor.name()), "=COLUMN"));
    }
    // A model takes [N, 1] for [N], and the other way round.
    if (WithoutOnes((*column)->example.dims) != WithoutOnes(example->dims)) {
      return UsageError(absl::StrCat("column '", Printable(wanted), "': an example is ",
                                     ToString((*column)->example), ", input '",
                                     Printable(tensor.name()), "' takes ", ToString(*example)));
    }
    if (absl::Status s = Dataset::CheckConversion(**column, example->dtype); !s.ok()) return s;
    inputs.push_back({tensor.name(), tensor.datatype(), *std::move(example), *column});
  }
  for (const auto& [input, column] : named) {
    if (std::find(known.begin(), known.end(), input) != known.end()) continue;
    return UsageError(absl::StrCat("--input: the model has no input '", Printable(input),
                                   "'; it has ", Printable(absl::StrJoin(known, ", "))));
  }
  return inputs;
}

absl::StatusOr<inference::ModelInferRequest> RequestFor(const std::string& model,
                                                        const std::vector<InputColumn>& inputs,
                                                        const Dataset& data, int64_t first,
                                                        int64_t examples) {
  inference::ModelInferRequest request;
  request.set_model_name(model);
  for (const InputColumn& input : inputs) {
    auto* tensor = request.add_inputs();
    tensor->set_name(input.input);
    tensor->set_datatype(input.datatype);
    tensor->add_shape(examples);
    for (const int64_t dim : input.example.dims) tensor->add_shape(dim);
    std::string* raw = request.add_raw_input_contents();
    const auto bytes = static_cast<size_t>(input.example.bytes());
    raw->resize(static_cast<size_t>(examples) * bytes);
    const Dims& dims = input.column->example.dims;
    for (int64_t i = 0; i < examples; ++i) {
      absl::Status read =
          data.Read(*input.column, first + i, Dims(dims.size(), 0), dims, input.example.dtype,
                    raw->data() + static_cast<size_t>(i) * bytes);
      if (!read.ok()) return read;
    }
  }
  return request;
}

// Appends the outputs of an answer. Returns DataLoss for one that does not fit the model.
absl::Status AddOutputs(const inference::ModelInferResponse& answer, int64_t examples,
                        std::map<std::string, Array>* arrays) {
  if (answer.outputs_size() != answer.raw_output_contents_size() ||
      answer.outputs_size() != static_cast<int>(arrays->size())) {
    return absl::DataLossError("the coordinator's answer lacks outputs");
  }
  for (int o = 0; o < answer.outputs_size(); ++o) {
    const auto found = arrays->find(answer.outputs(o).name());
    const std::string& raw = answer.raw_output_contents(o);
    if (found == arrays->end()) return absl::DataLossError("the answer has an unknown output");
    Array& array = found->second;
    TensorType type = array.type;
    type.dims[0] = examples;
    if (static_cast<int64_t>(raw.size()) != type.bytes()) {
      return absl::DataLossError(absl::StrCat("output '", Printable(found->first), "' has ",
                                              raw.size(), " bytes, expected ", type.bytes()));
    }
    array.type.dims[0] += examples;
    array.data.insert(array.data.end(), raw.begin(), raw.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, Array>> Predict(Client* client, const std::string& model,
                                                     const inference::ModelMetadataResponse& known,
                                                     const std::vector<InputColumn>& inputs,
                                                     const Dataset& data) {
  std::map<std::string, Array> arrays;
  int64_t input_bytes = 1, output_bytes = 1;  // of one example
  for (const InputColumn& input : inputs) input_bytes += input.example.bytes();
  for (const TensorMetadata& tensor : known.outputs()) {
    absl::StatusOr<TensorType> example = ExampleOf(tensor);
    if (!example.ok()) return example.status();
    output_bytes += example->bytes();
    example->dims.insert(example->dims.begin(), 0);
    arrays[tensor.name()].type = *example;
  }
  const int64_t most = std::max<int64_t>(1, kBytesPerRequest / std::max(input_bytes, output_bytes));
  for (int64_t first = 0; first < data.examples(); first += most) {
    const int64_t examples = std::min(most, data.examples() - first);
    const absl::StatusOr<inference::ModelInferRequest> request =
        RequestFor(model, inputs, data, first, examples);
    if (!request.ok()) return request.status();
    const absl::StatusOr<inference::ModelInferResponse> answer = client->ModelInfer(*request);
    if (!answer.ok()) return answer.status();
    if (absl::Status s = AddOutputs(*answer, examples, &arrays); !s.ok()) return s;
  }
  return arrays;
}

absl::Status RunPredict(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a model's name"); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  const std::string& model = flags.positional()[0];
  const std::string file = flags.Text("dataset"), out = flags.Text("output");
  if (file.empty()) return UsageError("which examples? Give --dataset=FILE (npz or npy)");
  if (out.empty()) return UsageError("where do the outputs go? Give --output=FILE (npz)");
  if (!absl::EndsWith(out, ".npz")) {
    return UsageError(absl::StrCat("--output is \"", Printable(out),
                                   "\"; the outputs are written as npz: give a name that ends in "
                                   ".npz"));
  }
  const auto named = ColumnsOf(flags);
  if (!named.ok()) return named.status();
  const absl::StatusOr<std::string> bytes = ReadNonemptyFile(file);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<std::shared_ptr<const Dataset>> data =
      Dataset::FromNpz(*bytes, /*holdout_fraction=*/0, Dataset::NpyColumn(file));
  if (!data.ok()) return UsageError(absl::StrCat(Printable(file), ": ", data.status().message()));
  auto client = context.client();
  if (!client.ok()) return client.status();
  const auto known = (*client)->ModelMetadata(model);
  if (!known.ok()) return known.status();
  const auto inputs = InputColumns(*known, **data, *named);
  if (!inputs.ok()) return inputs.status();
  const auto arrays = Predict(*client, model, *known, *inputs, **data);
  if (!arrays.ok()) return arrays.status();
  const absl::StatusOr<std::string> npz = WriteNpz(*arrays);
  if (!npz.ok()) return npz.status();
  if (absl::Status s = WriteFile(out, *npz); !s.ok()) return s;
  if (context.json()) {
    nlohmann::ordered_json json = {{"file", out}, {"examples", (*data)->examples()}};
    for (const auto& [name, array] : *arrays) {
      json["outputs"][name] = {{"dtype", Name(array.type.dtype)}, {"shape", array.type.dims}};
    }
    context.Document(json);
    return absl::OkStatus();
  }
  context.out() << Printable(out) << ": " << (*data)->examples() << " examples";
  for (const auto& [name, array] : *arrays) {
    context.out() << ", " << Printable(name) << " " << ToString(array.type);
  }
  context.out() << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command PredictCommand() {
  Command c;
  c.name = "predict";
  c.summary = "compute the outputs of a served graph for the examples of a file";
  c.usage = "predict MODEL --dataset=FILE --output=FILE [flags]";
  c.description =
      "MODEL is a trained graph that is served (espalier serve). The file's arrays feed the inputs "
      "of their names; labels may be missing. The outputs become arrays of an npz.";
  c.flags = {{"dataset", FlagType::kText, "FILE", "examples: npz or npy", 'd'},
             {"output", FlagType::kText, "FILE", "npz to write; its name ends in .npz", 'o'},
             ColumnFlag()};
  c.examples = {{"predictions of a trained model",
                 "espalier serve digits && espalier predict digits -d x.npz -o y.npz"},
                {"a column of another name",
                 "espalier predict digits -d x.npz -o y.npz --input image=pixels"}};
  c.run = RunPredict;
  return c;
}

}  // namespace espalier
