// Verdicts of `lnbench validate`: errors of the simulator as sections of its JSON, and whether each
// is within what is allowed. Goals of published measurements are in run/published.cpp.
#pragma once
#include <vector>

#include "json/json_tree.h"
#include "run/published.h"
#include "simulate/closed_form_times.h"

namespace longnet {

// Largest relative errors that are allowed: against equations; against SimGrid without and with
// contention. Goals of real runs stand in their file.
inline constexpr double kClosedFormError = 1e-9;
inline constexpr double kUncontendedError = 1e-6, kContendedError = 0.02;

struct ValidationSection {
  JsonNode node = JsonNode::object();
  bool good = true;
};

ValidationSection judge_closed_forms(const std::vector<ClosedFormTime>& cases);
// `compared`: what simgrid_oracle --json writes.
ValidationSection judge_simgrid(const JsonNode& compared);
// `compared`: what scripts/validate_real.py compare writes. Throws UsageError when it is something
// else.
ValidationSection judge_real(JsonNode compared);
// A case with its prediction; figures of one that has a reason to be absent are null.
JsonNode to_json(const PublishedCase& published, const Prediction& prediction);
// `predictions`: one per case.
ValidationSection judge_published(const std::vector<PublishedCase>& cases,
                                  const std::vector<Prediction>& predictions);

}  // namespace longnet
