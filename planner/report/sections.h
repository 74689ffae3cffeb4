// The sections of the page (html.h), each in its own file. All return markup.
#pragma once

#include <string>
#include <vector>

#include "espalier/v1/plan.pb.h"
#include "ops/graph/graph.h"
#include "planner/report/timeline.h"

namespace espalier {

std::string HeadlineSection(const v1::Plan& plan, const Graph& graph);
std::string AlternativesSection(const v1::Plan& plan);
std::string StepSection(const v1::Plan& plan);
std::string GraphSection(const v1::Plan& plan, const Graph& graph);
std::string ChangesSection(const v1::Plan& plan);
std::string GanttSection(const v1::Plan& plan, const Timeline& timeline);
std::string LinksSection(const v1::Plan& plan, const Timeline& timeline);
std::string MemorySection(const Timeline& timeline);
std::string OperatorsSection(const v1::Plan& plan);

// The content of <style>.
std::string PageStyle();

}  // namespace espalier
