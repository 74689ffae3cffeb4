// The definition of an operator: all that the rest of Espalier knows about it.
//
// An operator is one file ops/operators/<name>.cc that fills an OpDef and adds it in its
// `void Register<Name>(OpRegistry&)`, and one kernel file per backend. Nothing else names it.
//
// Conventions
//  - All types given to the functions below are static (the batch dimension is bound).
//  - Tensors are dense and row-major. Every operator takes at least f32.
//  - Operators must mean the same on a shard as on the whole tensor: kernels take sizes from the
//    views, and attributes never hold a size that a split would change. Where the meaning depends
//    on the whole tensor (the mean over a batch), `canonicalize` writes what is needed into an
//    attribute, once, on the whole graph.
//  - The gradient of a differentiable operator "x" is one operator "x_grad". Its inputs are the
//    forward inputs and outputs named in Gradient, then one gradient per forward output (absent if
//    nobody reads that output). Its outputs are the gradients of the differentiable inputs, each
//    with the type of that input. It runs under the same split as the forward operator, with its
//    attributes.
//  - Optimizer updates, batch_norm (running statistics) and paged_attention (KV cache) write some
//    of their inputs in place.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/kernel/attributes.h"
#include "ops/tensor/shape.h"

namespace espalier {

// The types of one node's inputs and outputs. An absent optional input has dtype kInvalid.
struct NodeTypes {
  Attributes attributes;
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;  // empty while they are being inferred

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].dtype != DType::kInvalid; }
};

enum class AttributeKind { kInt, kFloat, kBool, kString, kInts, kFloats };

struct AttributeSpec {
  std::string name;
  AttributeKind kind;
  std::optional<AttributeValue> default_value;  // none: the attribute must be given if `required`
  bool required = false;
  std::string doc;
};

struct Arity {
  std::string name;       // "x", "weight"; used in error messages
  bool optional = false;  // may be absent
  bool variadic = false;  // last one only: any number, at least one unless optional
  // May stay f32 where input 0 is bf16 or f16: a master weight. Types are then inferred as if it
  // had the type of input 0; its gradient is f32.
  bool wide = false;
  bool own_type = false;  // its type is independent of input 0's: an f32 mask
};

// The type in which mixed precision (ops/graph/precision.h) runs an operator.
enum class Precision {
  kFollow,  // the type of its floating-point operands; f32 if any of them is f32
  kNarrow,  // bf16 or f16: expensive operators that accumulate in f32 anyway
  kF32,     // f32: operators that lose too much otherwise, and all losses and metrics
};

// What a loss or metric takes as input 0. server/jobs/match_predictions.h converts what a model
// computes.
enum class Prediction {
  kValues,            // numbers, as they are
  kClassLogits,       // a softmax over the last dimension follows, unless `from_logits` is false
  kClassScores,       // only the order of the classes, in the last dimension, counts
  kLogProbabilities,  // of the classes, in dimension 1
  kBinaryLogits,      // a sigmoid follows, unless `from_logits` is false
  kBinaryScores,      // compared with attribute `threshold`
};

// FlexFlow's SOAP: sample, attribute and parameter dimensions (operators are placed by their device
// lists). kReduction is summed over: splitting it leaves partial sums in the outputs.
enum class AxisKind { kSample, kAttribute, kParameter, kReduction };

// One dimension of an operator's iteration space that may be cut into equal parts. A degree is
// legal if it divides `size`. A tensor dimension that follows the axis is cut at the same
// fractions, so its extent must be a multiple of `size` (64 columns that are 4 heads follow an axis
// of size 4).
struct Axis {
  std::string name;
  AxisKind kind;
  int64_t size;
};

constexpr int kNotSplit = -1;

// Dimension `dim` of input `input` is read in overlapping windows: outputs [a, b) along the axis
// that it follows need [a * stride - before, (b - 1) * stride - before + reach) of it, clipped to
// its extent. The input's shards overlap, so its extent need not be a multiple of the axis.
struct Halo {
  int input = 0;
  int dim = 0;
  int64_t stride = 1;
  int64_t before = 0;  // less than reach, as is the padding at the other end
  int64_t reach = 1;
};

// How an operator can be split. inputs[i][d] is the axis that dimension d of input i follows, or
// kNotSplit if each shard needs the whole dimension. An input is replicated along axes that none of
// its dimensions follow; an output has one partial sum per shard along such axes.
struct SplitRule {
  std::vector<Axis> axes;
  std::vector<std::vector<int>> inputs;
  std::vector<std::vector<int>> outputs;
  std::vector<Halo> halos;
};

// The work of one run of the operator.
struct Cost {
  double flops = 0;
  double bytes = 0;  // read and written, each operand once
};

struct Gradient {
  std::vector<int> needs_inputs;    // forward inputs that x_grad reads, in this order
  std::vector<int> needs_outputs;   // then forward outputs
  std::vector<int> differentiable;  // forward inputs that get a gradient, in the order of x_grad's
                                    // outputs; a variadic input is named by its first index
  // Optional: whether a forward output or input named above is needed under these attributes. If
  // not, it may be absent from x_grad's operands, which frees its memory.
  std::function<bool(const Attributes&, bool is_output, int index)> is_needed = {};
  std::function<Cost(const NodeTypes& forward)> cost;  // default: twice the forward cost
  // Optional: why there is no gradient under these attributes; empty if there is one.
  std::function<std::string(const Attributes&)> refusal = {};
  // Floating-point inputs that count as constants by the operator's definition. Any other that is
  // not differentiable must not depend on a trained parameter.
  std::vector<int> constants = {};

  bool is_constant(int input) const {
    return std::find(constants.begin(), constants.end(), input) != constants.end();
  }
};

// The equivalent ONNX operator of the default domain, equal in every supported opset, so that
// importer and exporter need no code for it. Inputs and outputs correspond by position.
struct OnnxForm {
  std::string op_type;  // "LeakyRelu"
  // Espalier's attribute -> ONNX's attribute, of the same kind (bool is an int in ONNX). For
  // export, attributes that are not listed must have their default.
  std::map<std::string, std::string> attributes;
};

// The integers that an input may hold: classes, or rows of a table. Kernels refuse others.
struct IndexRange {
  int input = 0;
  int64_t low = 0, high = 0;            // low <= index <= high
  std::optional<int64_t> ignored = {};  // may be there, too
};

// An optimizer: an operator that updates a parameter by its gradient. Inputs: parameter, gradient,
// scale (a scalar, optional), hyper f32[2] = (learning rate, 1-based step), the states, the sums.
// Writes the parameter (its output, in place) and the states; with step 0 both stay unchanged.
struct Update {
  // An optimizer name in job options, and the attributes that it implies.
  struct Variant {
    std::string name;  // "adamw"
    std::string doc;
    double learning_rate = 0;  // default
    Attributes attributes;
  };
  std::vector<Variant> variants;

  // A tensor kept between steps, initially zero.
  struct State {
    std::string name;  // "adam_m"; empty: this input is absent
    // The shape, if it is not the parameter's. Such a state is not split with the parameter.
    std::optional<Dims> dims;
  };
  std::function<std::vector<State>(const Attributes&, const Dims& parameter)> states;

  // Operators that run before the update, in this order, each on the inputs up to its own. Each
  // returns one f32 tensor, a sum over the elements of the parameter, which is reduced over shards.
  std::vector<std::string> sums;
};

struct OpDef {
  std::string name;
  std::string doc;  // one line: the formula, with shapes
  std::vector<Arity> inputs;
  int num_outputs = 1;  // -1: as many as infer returns
  std::vector<AttributeSpec> attributes;

  // Element types that input 0 may have, checked before `infer`. Empty: `infer` checks them.
  std::vector<DType> types;
  Precision precision = Precision::kFollow;
  std::optional<OnnxForm> onnx;

  // Returns the types of the outputs, or InvalidArgument that says which input is wrong, what was
  // found and what would be accepted. REQUIRES: attributes are complete and of the right kinds.
  std::function<absl::StatusOr<std::vector<TensorType>>(const NodeTypes&)> infer;

  // Optional: rewrites attributes on the whole graph after inference (see above). Idempotent.
  std::function<void(const NodeTypes&, Attributes*)> canonicalize;

  // Optional: of inputs that select among classes or rows. Data that does not fit is refused before
  // a step runs on it.
  std::function<std::vector<IndexRange>(const NodeTypes&)> index_ranges;

  // Optional: without it the operator runs unsplit, on one device.
  std::function<SplitRule(const NodeTypes&)> split;

  // Optional: default counts no FLOPs and the bytes of all operands.
  std::function<Cost(const NodeTypes&)> cost;

  std::optional<Gradient> gradient;
  // The operator only changes the shape of its operand: its output may alias the operand's memory,
  // and its gradient's output may alias the gradient that it reads.
  bool view = false;
  bool random = false;     // reads seed, node_key and step
  bool is_loss = false;    // output 0 is a scalar to minimize
  bool is_metric = false;  // output 0 is a scalar to report; never differentiated
  Prediction prediction = Prediction::kValues;  // of a loss or metric
  // Optional: converts the sum of output 0 over shards, averaged over batches, to the reported
  // metric (the root of a mean of squares).
  double (*finish)(double) = nullptr;
  std::optional<Update> update;

  // Whether some input gets a gradient: the operator "<name>_grad" exists.
  bool has_gradient() const { return gradient.has_value() && !gradient->differentiable.empty(); }
};

}  // namespace espalier
