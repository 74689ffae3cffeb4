// Where the ranks of a plan find a named tensor during a training step, so that a replay can read
// it. Reading changes neither instructions nor memory, so a replayed step keeps its bits.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "espalier/v1/probe.pb.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/graph.h"

namespace espalier {

// The places of a graph's tensors in the training programs (or evaluation programs) of all ranks,
// which were lowered from it; both must outlive this. The methods return what each rank reads, by
// rank: RankProbe without `probe` and `reduction`. Together, the ranks read every element of the
// tensor once, or, with `adds_up`, every addend. NotFound if the programs have no such tensor;
// FailedPrecondition if no rank ever holds whole values of it.
class ProbePoints {
 public:
  using Places = std::vector<v1::RankProbe>;

  ProbePoints(const Graph& graph, const std::vector<v1::Program>& programs);

  // The same, but with the gradients of these values where those of the others are that they are
  // mapped to; without them where that is nullopt.
  ProbePoints WithGradientsOf(
      const std::map<std::string, std::optional<std::string>>& others) const;

  // A tensor that is computed, once it is, or a parameter before the step. Of this and the next, an
  // output of the graph may have the output's name, such as "loss", unless a value has it.
  absl::StatusOr<Places> Value(const std::string& name) const;
  // The gradient of the loss with respect to a parameter or a computed tensor: of the whole batch,
  // without loss scaling, before clipping; with the penalties of regularizers.
  absl::StatusOr<Places> Gradient(const std::string& name) const;
  // A parameter before the step, as in the checkpoint of so many steps.
  absl::StatusOr<Places> Parameter(const std::string& name) const;
  // A parameter after the step minus before.
  absl::StatusOr<Places> Update(const std::string& name) const;
  // Optimizer state `slot` ("adam_m") of a parameter, before the step.
  absl::StatusOr<Places> State(const std::string& parameter, const std::string& slot) const;
  // What a dataset's column brings.
  absl::StatusOr<Places> Batch(const std::string& column) const;

  const Graph& graph() const { return *graph_; }
  // The whole tensor that is read there. REQUIRES: a rank reads it.
  TensorType TypeOf(const Places& places) const;

  // Names of tensors that the methods above accept.
  const std::set<std::string>& values() const { return values_; }
  const std::set<std::string>& gradients() const { return gradients_; }
  const std::set<std::string>& parameters() const { return parameters_; }
  const std::set<std::string>& columns() const { return columns_; }
  std::set<std::string> states(const std::string& parameter) const;
  // Values by the names of outputs.
  const std::map<std::string, std::string>& outputs() const { return outputs_; }

 private:
  struct Write {
    int64_t begin, end;  // bytes of the arena
    int instruction;
  };
  struct Rank {
    const v1::Program* program;
    std::vector<std::string> tensors;  // by buffer
    std::vector<Write> writes;         // in the order of instructions
    std::vector<int> first_read;       // by buffer; the number of instructions: none
    std::vector<int> last_write;       // by buffer; -1: none
    std::vector<int> summed;           // by buffer: its all-reduce in place; -1: none
  };
  // A buffer that holds a part.
  struct Part {
    int rank;
    int buffer;
    int instructions;
    bool computed;
  };

  static Rank ReadAccesses(const v1::Program& program);
  // The instruction after which a buffer is whole; -1: none.
  static int Definition(const Rank& rank, int buffer);
  // The value that is meant: `name`, or that of this output.
  const std::string& ValueOf(const std::string& name) const;
  // Chooses parts that hold every element once. `what`: for errors.
  absl::StatusOr<Places> Choose(const std::string& what, std::vector<Part> parts) const;
  absl::StatusOr<Places> ChooseComputed(const std::string& what, const std::string& tensor) const;
  // Of a scalar of which each rank or micro-batch reports an addend, like the loss.
  std::optional<Places> ReportedAddends(const std::string& value) const;
  // Of a buffer that is kept between steps, before the step.
  absl::StatusOr<Places> ChooseKept(const std::string& what, const std::string& tensor,
                                    v1::BufferKind kind) const;
  // The name under which the programs have the gradient of a computed tensor; empty: none.
  std::string GradientTensor(const std::string& value) const;
  void DivideByLossScale(Places* places) const;

  const Graph* graph_;
  std::vector<Rank> ranks_;
  std::map<std::string, std::string> outputs_;
  std::set<std::string> values_, gradients_, parameters_, columns_, tensors_, states_;
  std::map<std::string, std::string> gradients_of_;  // value -> the value whose gradient it has
};

// "there are: 'y', 'z' and 8 more", of `names` the most similar ones to `name`.
std::string NamesThatThereAre(const std::string& name, const std::set<std::string>& names);
// "there is no parameter 'x'; there are: 'y', 'z'".
std::string NoSuchTensor(absl::string_view kind, const std::string& name,
                         const std::set<std::string>& names);

}  // namespace espalier
