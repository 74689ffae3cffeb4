#include "tests/conformance/serve.h"

#include <exception>
#include <iostream>
#include <string>

namespace espalier::conformance {

void Serve(const std::function<json(const json& request)>& answer) {
  std::string line;
  while (std::getline(std::cin, line)) {
    json reply;
    try {
      reply = answer(json::parse(line));
    } catch (const std::exception& e) {
      reply = {{"error", std::string("bad request: ") + e.what()}};
    }
    std::cout << reply.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
}

}  // namespace espalier::conformance
