// Recursive-descent parser of Jinja2 expressions, from `a if b else c` down to literals. Return
// values are meaningless once status() is not OK.
#pragma once

#include "serving/chat_template/parser_base.h"

namespace espalier::jinja {

class ExpressionParser : public ParserBase {
 protected:
  using ParserBase::ParserBase;

  NodePtr Expression();
  // Expressions with commas between them form a tuple. `with_if`: a conditional expression is
  // allowed.
  NodePtr TupleOrOne(bool with_if);
  // `bare`: the first filter has no bar, as in {% filter upper %}.
  NodePtr FilterChain(NodePtr node, bool bare = false);

 private:
  NodePtr Or();
  NodePtr And();
  NodePtr Not();
  NodePtr Compare();
  NodePtr Sum();
  NodePtr Concat();
  NodePtr Product();
  NodePtr Power();
  NodePtr Unary(bool with_filter);
  NodePtr Constant(Value value);
  NodePtr Primary();
  NodePtr ListLiteral();
  NodePtr DictLiteral();
  NodePtr Postfix(NodePtr node);
  NodePtr Subscript(NodePtr what);
  // (1, a, *b, c=2, **d)
  void CallArguments(Node* node);
  NodePtr Call(NodePtr what);
  NodePtr FiltersAndTests(NodePtr node);
  NodePtr Test(NodePtr what);
};

}  // namespace espalier::jinja
