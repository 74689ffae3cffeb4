// Imports ONNX files as graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "ops/graph/graph.h"
#include "ops/graph/initial_value.h"

namespace espalier {

// Supported opsets of the default domain.
constexpr int64_t kMinOnnxOpset = 9;
constexpr int64_t kMaxOnnxOpset = 21;

// Runs one operator on the host. Takes the bytes of its inputs (null if absent), returns those of
// its outputs. `types` is complete. See cpu_evaluator.h.
using Evaluator = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& op, const NodeTypes& types, const std::vector<const std::string*>& inputs)>;

// The key of ModelProto.metadata_props that lists the trained initializers: a JSON list of names.
// It wins over inference, and ExportOnnx writes it.
constexpr char kTrainableKey[] = "espalier.trainable";

// A tensor in memory: little-endian, row-major.
struct HostTensor {
  TensorType type;
  std::string bytes;
};

struct ImportOptions {
  // Folds constants. Without it no constants are folded, and models that compute a shape or an axis
  // are refused.
  Evaluator evaluator;
  // The folder of the model's file. External data is read from it and its subfolders, never through
  // a symbolic link. Empty: models with external data are refused.
  std::string folder;
  // Values of graph inputs, used only where the import needs a value (a shape or axes that are an
  // input of the model). The input stays an input.
  std::map<std::string, HostTensor> constants;
  // Shapes of graph inputs that replace those in the file, for models with more than one symbolic
  // dimension. Dimension 0 may be -1.
  std::map<std::string, Dims> shapes;
  // Limit on the bytes of all constants that nodes create (a range, iterations of a loop), because
  // a small file may ask for any amount. Exceeding it is Unimplemented. Tensors in the file, in
  // initializers or Constant nodes, count only from the second time they are read (in a loop or a
  // function).
  int64_t max_constant_bytes = int64_t{1} << 30;
  // Initializers that are trained whatever the file says and the import infers, but running
  // statistics.
  std::set<std::string> parameters;
  // Whether a graph input is fed with data. Others may be parameters that the exporter left without
  // values; they then start from initializers (missing_values.h). Empty: all inputs are data.
  std::function<bool(const std::string& input)> has_data;
};

// What an import decided about a file.
struct ImportReport {
  struct Initializer {
    TensorType type;
    bool trained = false;
    std::string reason;
    bool doubtful = false;  // inferred from little evidence: a user should look at it
  };
  // By name: floating-point initializers that nodes of the imported graph read, and parameters
  // without values.
  std::map<std::string, Initializer> initializers;
  // Sentences for the user about layers that the exporter has left out (folded_layers.h), and what
  // parameters without values start from.
  std::vector<std::string> notes;
};

struct ImportedModel {
  Graph graph;
  // Parameters of more than 64 KiB, whose elements the graph does not hold: they stay in the files
  // of the model until they are read.
  std::vector<InitialValue> values;
};

// Converts an ONNX model to a graph.
//  - The first dimension of an input may be symbolic: it becomes the batch (-1).
//  - Floating-point initializers become parameters under their own names; buffers and running
//    statistics are not trainable (initializer_roles.h tells them apart). Literals that the
//    exporter wrote as initializers, and all other constants, become constants.
//  - Constants are folded; functions, branches and loops of known length are inlined; dead code is
//    removed.
//  - Outputs keep their names. The graph has no loss: the caller adds one to train it.
// Returns InvalidArgument that names the node, operator, tensor or attribute that is wrong and what
// would be accepted; Unimplemented that names the unsupported operator, form of an operator or
// opset; ResourceExhausted if the file is larger than the format allows; errors of reading it.
// `report` may be null.
absl::StatusOr<ImportedModel> ImportOnnxFile(const OpRegistry& registry,
                                             std::shared_ptr<const ReadableFile> file,
                                             const ImportOptions& options = {},
                                             ImportReport* report = nullptr);
// The same of the bytes of a file. The graph holds all values.
absl::StatusOr<Graph> ImportOnnx(const OpRegistry& registry, std::string bytes,
                                 const ImportOptions& options = {}, ImportReport* report = nullptr);

// An operator that ImportOnnx does not support with any attributes.
struct UnsupportedOperator {
  std::string op;  // with its domain, unless that is the default domain
  int nodes = 0;
  std::string first_node;
  std::string reason;
};
// Returns each unsupported operator once, in order of appearance, including functions and branches;
// none if the file is not a model. A model without any may still be refused: for an unsupported
// form of an operator, or for an error.
std::vector<UnsupportedOperator> UnsupportedOperators(const OpRegistry& registry,
                                                      std::shared_ptr<const ReadableFile> file);
std::vector<UnsupportedOperator> UnsupportedOperators(const OpRegistry& registry,
                                                      std::string bytes);

// The supported ONNX operators, sorted; and the known unsupported ones, with the reason.
std::vector<std::string> SupportedOnnxOperators(const OpRegistry& registry);
const std::map<std::string, std::string>& UnsupportedOnnxOperators();

}  // namespace espalier
