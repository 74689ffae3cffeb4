// Chat templates: the part of Jinja2 in which models say how a conversation becomes a prompt.
// Evaluates as transformers has Jinja2 do it (immutable sandbox, trim_blocks, lstrip_blocks, loop
// controls, raise_exception, strftime_now, tojson that writes plain JSON), with bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier::jinja {

struct Node;

struct RenderOptions {
  int64_t max_steps = 5'000'000;              // nodes evaluated, items and characters looked at
  size_t max_work_bytes = size_t{512} << 20;  // of all texts and lists made on the way
  size_t max_output_bytes = size_t{16} << 20;
  // Today's date by a strftime format; without one, strftime_now is an error.
  std::function<std::string(const std::string& format)> strftime_now;
};

// Immutable, hence usable from any thread.
class Template {
 public:
  // InvalidArgument or Unimplemented with the line.
  static absl::StatusOr<Template> Parse(absl::string_view source);

  // `variables`: an object. InvalidArgument with the line: what the template itself refuses, what
  // makes no sense in it. ResourceExhausted beyond a bound.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables,
                                     const RenderOptions& options) const;

 private:
  explicit Template(std::shared_ptr<const Node> root) : root_(std::move(root)) {}
  std::shared_ptr<const Node> root_;
};

}  // namespace espalier::jinja
