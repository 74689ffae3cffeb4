#include "ops/probe/expression.h"

#include <string>

namespace espalier {
namespace {

using testing::HasSubstr;

std::string Canonical(const std::string& text) {
  const auto probe = ParseProbe(text);
  return probe.ok() ? ToString(*probe) : std::string(probe.status().message());
}

TEST(ProbeExpression, CanonicalTextOfEachTargetAndReduction) {
  const std::pair<const char*, const char*> cases[] = {
      {"relu_1", "relu_1"},
      {"value(relu_1)", "relu_1"},
      {"full( param( dense/kernel ) )", "param(dense/kernel)"},
      {"norm(grad(layers.*.q_proj.weight))", "norm(grad(layers.*.q_proj.weight))"},
      {"mean(update('a b'))", "mean(update(\"a b\"))"},
      {"std(state(dense/kernel, adam_m))", "std(state(dense/kernel, adam_m))"},
      {"min(batch(\"x, y\"))", "min(batch(\"x, y\"))"},
      {"max(a\"b\"c)", "probe, column 6: expected ')'\n  max(a\"b\"c)\n       ^"},
      {"count_nan(x)", "count_nan(x)"},
      {"histogram(relu_1)", "histogram(relu_1, 64)"},
      {"histogram(relu_1,32,-0.1,1e3)", "histogram(relu_1, 32, -0.1, 1000)"},
      {"quantiles(x)", "quantiles(x, 0, 0.25, 0.5, 0.75, 1)"},
      {"quantiles(x, 0.333333333333333333, 1)", "quantiles(x, 0.3333333333333333, 1)"},
      {"sample(x, 16)", "sample(x, 16)"},
      {"top_k(grad(x), 3)", "top_k(grad(x), 3)"},
      {"confusion(logits, batch(label))", "confusion(logits, batch(label))"},
      {"norm(norm)", "norm(norm)"},
      {"norm", "norm"},
  };
  for (const auto& [text, canonical] : cases) {
    EXPECT_EQ(Canonical(text), canonical) << text;
  }
  const auto probe = ParseProbe("state('dense (1)', *)");
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_EQ(probe->targets[0].kind, ProbeTarget::kState);
  EXPECT_EQ(probe->targets[0].name, "dense (1)");
  EXPECT_EQ(probe->targets[0].slot, "*");
  EXPECT_TRUE(probe->targets[0].has_wildcard());
}

TEST(ProbeExpression, CanonicalTextIsParsedToTheSameProbe) {
  for (const char* text :
       {"quantiles(x, 0.333333333333333333, 0.1, 1e-300)", "histogram(grad('a\"b'), 7, -1e-5, 3.3)",
        "confusion('a, b', batch(c))", "top_k(state(a, b), 65536)", "\"norm(x)\"", "x"}) {
    const auto probe = ParseProbe(text);
    ASSERT_TRUE(probe.ok()) << probe.status();
    const auto again = ParseProbe(ToString(*probe));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *probe) << text;
    EXPECT_EQ(ToString(*again), ToString(*probe));
    const auto reduction = ParseReduction(ToString(probe->reduction));
    ASSERT_TRUE(reduction.ok()) << reduction.status();
    EXPECT_EQ(*reduction, probe->reduction) << text;
  }
}

TEST(ProbeExpression, ErrorsShowThePlaceAndWhatIsAccepted) {
  EXPECT_EQ(Canonical("histogram(grad(x), 64, 1, -1)"),
            "probe, column 27: expected an upper end above the lower one\n"
            "  histogram(grad(x), 64, 1, -1)\n"
            "                            ^");
  EXPECT_THAT(Canonical("nrom(x)"), HasSubstr("column 1: expected a reduction (full, norm"));
  EXPECT_THAT(Canonical("nrom(x)"), HasSubstr("did you mean 'norm'?"));
  EXPECT_THAT(Canonical("norm(gard(x))"), HasSubstr("column 6: expected a target (value, param"));
  EXPECT_THAT(Canonical("norm(mean(x))"), HasSubstr("'mean' is a reduction"));
  // Columns are characters, not bytes.
  EXPECT_THAT(Canonical("norm(größe x)"), HasSubstr("column 12: expected ')'"));
  for (const char* text : {"", " \n"}) {  // no place to mark
    EXPECT_THAT(Canonical(text), HasSubstr("a probe is empty; accepted: a name, such as loss"));
  }
  for (const char* text : {"(",
                           "norm(",
                           "norm()",
                           "norm(x",
                           "norm(x))",
                           "norm(x) y",
                           "norm(x, 3)",
                           "x y",
                           "'x",
                           "norm('x)",
                           "norm('')",
                           "state(x)",
                           "grad(x, y)",
                           "sample(x)",
                           "sample(x, 0)",
                           "sample(x, 1.5)",
                           "sample(x, 65537)",
                           "top_k(x, -1)",
                           "top_k(x, 3, 4)",
                           "histogram(x, 0)",
                           "histogram(x, 64, 1)",
                           "histogram(x, 64, 1, 1)",
                           "histogram(x, 64, 1, 2, 3)",
                           "histogram(x, 64, nan, 1)",
                           "histogram(x, 64, -1e308, 1e308)",
                           "quantiles(x, 1.1)",
                           "quantiles(x, -0.1)",
                           "quantiles(x, 0.5,)",
                           "confusion(x)",
                           "confusion(x, *)",
                           "confusion(x, y, z)",
                           "norm(x, '3')",
                           "sample(x, 99999999999999999999)",
                           "sample(x, 1e999)",
                           "histogram(x, 64, -1e999, 1)",
                           "quantiles(x, 1e400)",
                           "'norm'(x)"}) {
    const auto probe = ParseProbe(text);
    ASSERT_FALSE(probe.ok()) << text << " is " << ToString(*probe);
    EXPECT_EQ(probe.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(probe.status().message(), HasSubstr("^")) << text;
  }
  // A line end would move the mark.
  EXPECT_EQ(Canonical("norm(x\n\t3)"), "probe, column 9: expected ')'\n  norm(x  3)\n          ^");
  for (const char* text : {"", "mode", "sample", "norm(1)", "histogram(64", "'norm'", "norm x"}) {
    EXPECT_FALSE(ParseReduction(text).ok()) << text;
  }
}

TEST(ProbeExpression, LongAndDeeplyNestedTextsAreRefused) {
  EXPECT_THAT(Canonical(std::string(5000, 'x')), HasSubstr("5000 bytes; the most are 4096"));
  EXPECT_THAT(Canonical(std::string(100'000'000, '(')), HasSubstr("the most are 4096"));
  std::string nested;
  for (int i = 0; i < 800; ++i) nested += "norm(";
  EXPECT_THAT(Canonical(nested), HasSubstr("column 6: expected a target; 'norm' is a reduction"));
  EXPECT_THAT(Canonical(std::string(4000, '(')), HasSubstr("column 1: expected a name"));
  // What is accepted is accepted as ToString writes it.
  std::string many = "quantiles(x";
  while (many.size() < 4000) many += ",.1";
  EXPECT_THAT(Canonical(many + ")"), HasSubstr("with its defaults written out; the most are 4096"));
  EXPECT_FALSE(ParseProbe("quantiles(" + std::string(4080, 'x') + ")").ok());
  const std::string longest = "quantiles(" + std::string(4000, 'x') + ")";
  EXPECT_EQ(Canonical(Canonical(longest)), Canonical(longest));
  EXPECT_TRUE(ParseProbe(Canonical(longest)).ok());
}

}  // namespace
}  // namespace espalier
