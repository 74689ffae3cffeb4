#include "proto/states.h"

namespace espalier {

std::string StateName(v1::JobState state) {
  switch (state) {
    case v1::QUEUED:
      return "queued";
    case v1::PLANNING:
      return "planning";
    case v1::RUNNING:
      return "running";
    case v1::RECOVERING:
      return "recovering";
    case v1::SUCCEEDED:
      return "succeeded";
    case v1::FAILED:
      return "failed";
    case v1::CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

std::string StateName(v1::DistillationState state) {
  switch (state) {
    case v1::DISTILLATION_QUEUED:
      return "queued";
    case v1::DISTILLATION_RUNNING:
      return "running";
    case v1::DISTILLATION_SUCCEEDED:
      return "succeeded";
    case v1::DISTILLATION_FAILED:
      return "failed";
    case v1::DISTILLATION_CANCELLED:
      return "cancelled";
    default:
      return "unknown";
  }
}

bool IsOver(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

bool IsOver(v1::DistillationState state) {
  return state == v1::DISTILLATION_SUCCEEDED || state == v1::DISTILLATION_FAILED ||
         state == v1::DISTILLATION_CANCELLED;
}

bool IsGone(v1::WorkerInfo::State state) {
  return state == v1::WorkerInfo::DEAD || state == v1::WorkerInfo::LEFT;
}

}  // namespace espalier
