// Renders templates for tests/conformance/chat_templates_test.py: {"template": "...", "variables":
// "JSON text, to keep the order"} -> {"text": "..."} or {"error": "..."}. strftime_now returns its
// format.
#include <nlohmann/json.hpp>
#include <string>

#include "serving/chat_template/jinja_template.h"
#include "tests/conformance/serve.h"

namespace espalier::conformance {
namespace {

json Answer(const json& request) {
  const auto parsed = jinja::Template::Parse(request.at("template").get<std::string>());
  if (!parsed.ok()) return {{"error", parsed.status().ToString()}};
  jinja::RenderOptions options;
  options.strftime_now = [](const std::string& format) { return "now:" + format; };
  const auto variables = nlohmann::ordered_json::parse(request.at("variables").get<std::string>());
  const auto text = parsed->Render(variables, options);
  if (!text.ok()) return {{"error", text.status().ToString()}};
  return {{"text", *text}};
}

}  // namespace
}  // namespace espalier::conformance

int main() { espalier::conformance::Serve(espalier::conformance::Answer); }
