// The syntax tree of a Jinja template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serving/chat_template/value.h"

namespace espalier::jinja {

enum class NodeType {
  // Expressions.
  kConstant,   // value
  kName,       // text
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value
  kUnary,      // text: - + not
  kBinary,     // text: + - * / // % ** and or
  kConcat,     // children, ~
  kCompare,    // first child, then one for each of names: == != < <= > >= in notin
  kIf,         // value, condition, else (may be null)
  kAttribute,  // text of children[0]
  kItem,       // children[1] of children[0]
  kSlice,      // children: value, begin, end, step; each of the last three may be null
  kCall,       // children[0] with arguments
  kFilter,     // text, on children[0] (null: the enclosing block), with arguments
  kTest,       // text, on children[0], with arguments
  // Statements.
  kText,         // text
  kOutput,       // children[0]
  kBlock,        // children in order
  kFor,          // target, over, condition or null, body, else or null; flag: recursive
  kCondition,    // condition, body, condition, body, ..., else or null
  kSet,          // target, value
  kSetBlock,     // target, filter chain or null, body
  kMacro,        // text, names: parameters, children: body, then defaults of the last parameters
  kCallBlock,    // children[0]: call, [1]: the macro `caller`
  kFilterBlock,  // children[0]: filter chain, [1]: body
  kWith,         // children: body, then target and value in turn
  kBreak,
  kContinue,
};

struct Node {
  NodeType type;
  int line = 0;
  std::string text;
  Value value;
  bool flag = false;
  bool has_macro = false;  // the subtree contains a macro
  int depth = 1;           // of the subtree
  std::vector<std::unique_ptr<Node>> children;
  std::vector<std::string> names;
  // Arguments of calls, filters and tests.
  std::vector<std::unique_ptr<Node>> positional;
  std::vector<std::pair<std::string, std::unique_ptr<Node>>> named;
  std::unique_ptr<Node> spread;        // *args
  std::unique_ptr<Node> spread_named;  // **kwargs
};

}  // namespace espalier::jinja
