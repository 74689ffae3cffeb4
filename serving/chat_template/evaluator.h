// Evaluates the syntax tree of a template. Steps, bytes allocated, bytes printed and depth are
// bounded, so that an untrusted template ends, if necessary with an error.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/chat_template/ast.h"
#include "serving/chat_template/jinja_template.h"
#include "serving/chat_template/value.h"

namespace espalier::jinja {

// The variable `loop`.
struct Loop {
  const std::vector<Value>* items = nullptr;  // null once the loop has ended
  size_t index = 0;                           // 0-based
  size_t length = 0;
  int depth = 1;
  std::vector<Value> last_changed;
  bool changed_before = false;
  Value recurse;  // callable, in recursive loops
};

struct Scope {
  absl::flat_hash_map<std::string, Value> names;
  Scope* parent = nullptr;
};

class Evaluator {
 public:
  Evaluator(const RenderOptions& options, std::string* out) : options_(options), out_(out) {}
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;

  absl::Status Render(const Node& root, Dict variables);

  // Records the first error, with its line. After it everything evaluates to undefined.
  bool ok() const { return status_.ok(); }
  Value Fail(absl::string_view what);
  Value FailUndefined(const Value& value);

  // Charges work. Returns false, and fails, if a bound is exceeded.
  bool Work(int64_t steps, size_t bytes = 0);
  // Charges for printing a value or comparing it.
  bool WorkOn(const Value& value);
  // Python's str(), charged.
  std::string StrOf(const Value& value);
  // Makes a value, charged.
  Value Text(std::string text);
  Value Items(std::vector<Value> items, ListKind kind = ListKind::kList);
  Value Mapping(Dict dict);
  Value NewNamespace(std::map<std::string, Value> fields);

  Value Call(const Value& function, Arguments arguments);
  // The items of an iterable. Fails and returns nothing for other values.
  std::vector<Value> Iterate(const Value& value);

  // Semantics of Python and Jinja2; operators.cc.
  Value Binary(absl::string_view op, const Value& a, const Value& b);
  Value Compare(absl::string_view op, const Value& a, const Value& b);
  bool Contains(const Value& container, const Value& item);
  Value Attribute(const Value& object, const std::string& name);
  Value Item(const Value& object, const Value& key);
  Value Slice(const Value& object, const Value& begin, const Value& end, const Value& step);

  // jinja_filters.cc, jinja_tests.cc, methods.cc, jinja_globals.cc. An unknown method is undefined.
  Value Filter(const std::string& name, Arguments arguments);
  bool Test(const std::string& name, const Arguments& arguments);
  Value Method(const Value& object, const std::string& name);
  void AddGlobals(Scope* scope);

  const RenderOptions& options() const { return options_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  // Depth of evaluation, including macros that call macros.
  static constexpr int kMaxDepth = 400;
  // Counts depth_ while it lives.
  struct DepthGuard {
    explicit DepthGuard(Evaluator* e) : evaluator(e) {
      if (++e->depth_ > kMaxDepth) {
        e->Fail("nested too deep, a macro that calls itself without end?");
      }
    }
    ~DepthGuard() { --evaluator->depth_; }
    Evaluator* evaluator;
  };

  Value Eval(const Node& node);
  Value EvalCompare(const Node& node);
  Value EvalTest(const Node& node);
  Value EvalFilter(const Node& node, const Value* block);
  Arguments EvalArguments(const Node& node);
  Value EvalMaybe(const std::unique_ptr<Node>& node);

  // statements.cc
  Flow Exec(const Node& node);
  Flow ExecBlock(const Node& node);
  Flow ExecFor(const Node& node);
  Flow RunLoop(const Node& node, const std::vector<Value>& over, int depth);
  Flow ExecCondition(const Node& node);
  void ExecWith(const Node& node);
  void Assign(const Node& target, const Value& value);
  Value MakeMacro(const Node& node);
  Value CallMacro(const Node& node, Scope* scope, Arguments arguments);
  void Output(absl::string_view text);
  // Returns what `body` prints.
  Value Capture(const std::function<void()>& body);

  const Value* Find(const std::string& name) const;
  // Pushes a scope. It lives until the end of rendering if a macro may refer to it.
  Scope* Push(Scope* parent);
  void Pop(Scope* back, bool keep);

  const RenderOptions& options_;
  std::string* out_;
  absl::Status status_;
  int line_ = 0;
  int depth_ = 0;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  size_t output_bytes_ = 0;
  std::deque<std::unique_ptr<Scope>> scopes_;
  Scope* scope_ = nullptr;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// The arguments of a call, bound to parameter names by position or by name.
class BoundArguments {
 public:
  BoundArguments(Evaluator& evaluator, std::string function, Arguments arguments,
                 std::vector<std::string> names);
  bool Has(size_t i) const { return i < values_.size() && given_[i]; }
  // Undefined if the argument is absent.
  const Value& operator[](size_t i) const { return values_[i]; }
  int64_t Int(size_t i, int64_t fallback);
  bool Bool(size_t i, bool fallback) { return Has(i) ? values_[i].Truth() : fallback; }
  std::string String(size_t i, absl::string_view fallback);

 private:
  Evaluator& evaluator_;
  std::string function_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace espalier::jinja
