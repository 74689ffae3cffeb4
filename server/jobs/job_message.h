// The messages of a job's log, by level (v1::JobMessage says which is for what).
#pragma once

#include <string>
#include <utility>

#include "espalier/v1/training.pb.h"

namespace espalier {

inline v1::JobMessage MessageAt(v1::JobMessage::Level level, std::string text) {
  v1::JobMessage message;
  message.set_level(level);
  message.set_text(std::move(text));
  return message;
}

inline v1::JobMessage InfoMessage(std::string text) {
  return MessageAt(v1::JobMessage::INFO, std::move(text));
}

inline v1::JobMessage DetailMessage(std::string text) {
  return MessageAt(v1::JobMessage::DETAIL, std::move(text));
}

inline v1::JobMessage WarningMessage(std::string text) {
  return MessageAt(v1::JobMessage::WARNING, std::move(text));
}

}  // namespace espalier
