// Fuzzes chat templates: any text parses or fails, and rendering stays within its limits.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "serving/chat_template/jinja_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  static const auto* const variables = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
      "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "H\u00e9 \"you\"\n"},
                   {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}],
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
      "add_generation_prompt": true, "bos_token": "<s>", "n": 3, "s": "a b c"})"));
  const auto parsed =
      jinja::Template::Parse(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  jinja::RenderOptions options;
  options.max_steps = 100'000;
  options.max_work_bytes = 16 << 20;
  options.max_output_bytes = 1 << 20;
  options.strftime_now = [](const std::string& format) { return format; };
  (void)parsed->Render(*variables, options);
  return 0;
}
