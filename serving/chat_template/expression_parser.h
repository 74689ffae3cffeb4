// Jinja2's expressions, from `a if b else c` down to literals. Where status() is not OK, what is
// returned means nothing.
#pragma once

#include "serving/chat_template/parser_base.h"

namespace espalier::jinja {

class ExpressionParser : public ParserBase {
 protected:
  using ParserBase::ParserBase;

  NodePtr Expression();
  // Expressions with commas between are a tuple. `with_if`: a conditional may stand there.
  NodePtr TupleOrOne(bool with_if);
  // `bare`: the first filter stands without its bar, as in {% filter upper %}.
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
