#include "proto/states.h"

namespace espalier {

std::string StateName(proto::JobState state) {
  switch (state) {
    case proto::QUEUED:
      return "queued";
    case proto::PLANNING:
      return "planning";
    case proto::RUNNING:
      return "running";
    case proto::RECOVERING:
      return "recovering";
    case proto::SUCCEEDED:
      return "succeeded";
    case proto::FAILED:
      return "failed";
    case proto::CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

std::string StateName(proto::BoostState state) {
  switch (state) {
    case proto::BOOST_QUEUED:
      return "queued";
    case proto::BOOST_RUNNING:
      return "running";
    case proto::BOOST_SUCCEEDED:
      return "succeeded";
    case proto::BOOST_FAILED:
      return "failed";
    case proto::BOOST_CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

bool IsOver(proto::JobState state) {
  return state == proto::SUCCEEDED || state == proto::FAILED || state == proto::CANCELLED;
}

bool IsOver(proto::BoostState state) {
  return state == proto::BOOST_SUCCEEDED || state == proto::BOOST_FAILED ||
         state == proto::BOOST_CANCELLED;
}

}  // namespace espalier
