#include "run/validation.h"

#include <algorithm>
#include <utility>

#include "io/config_reader.h"
#include "io/record_table.h"

namespace longnet {

ValidationSection judge_closed_forms(const std::vector<ClosedFormTime>& cases) {
  ValidationSection s;
  double largest = 0;
  JsonNode nodes = JsonNode::array();
  for (const ClosedFormTime& c : cases) {
    largest = std::max(largest, c.rel_error());
    s.good &= c.rel_error() <= kClosedFormError;  // false of a NaN
    nodes.push(JsonNode::object({{"name", c.name},
                                 {"equation", c.equation},
                                 {"expected_s", c.expected_s},
                                 {"simulated_s", c.simulated_s},
                                 {"rel_error", c.rel_error()}}));
  }
  s.node.set("max_rel_error", largest).set("cases", nodes);
  return s;
}

ValidationSection judge_simgrid(const JsonNode& compared) {
  ValidationSection s;
  const JsonNode &alone = *compared.find("uncontended"), &shared = *compared.find("contended");
  s.node.set("uncontended_max_rel_error", alone.real("max_rel_error"));
  s.node.set("contended_max_rel_error", shared.real("max_rel_error"));
  s.node.set("uncontended_cases", alone.whole("cases"));
  s.node.set("contended_cases", shared.whole("cases")).set("reason", JsonNode());
  s.node.set("cases", *compared.find("cases"));
  s.good = alone.real("max_rel_error") <= kUncontendedError &&
           shared.real("max_rel_error") <= kContendedError;
  return s;
}

ValidationSection judge_real(JsonNode compared) {
  Problems problems;
  FieldReader r(&compared, "", problems);
  for (const char* key : {"points", "median_rel_error", "p95_rel_error", "goal_median_rel_error",
                          "goal_p95_rel_error", "cases"})
    if (!compared.find(key))
      problems.add(compared, key, "is missing",
                   "--real takes what validate_real.py compare writes");
  double error = 0;
  for (const char* key :
       {"median_rel_error", "p95_rel_error", "goal_median_rel_error", "goal_p95_rel_error"})
    r(key, error, {.min = 0});
  int64_t points = 0;
  r("points", points, {.min = 1});
  if (const JsonNode* cases = r.take("cases"))
    for (const JsonNode* one : as_list(*cases, "cases", problems))
      JsonReader(one, "cases", problems);
  problems.throw_if_any();
  const bool good = compared.real("median_rel_error") <= compared.real("goal_median_rel_error") &&
                    compared.real("p95_rel_error") <= compared.real("goal_p95_rel_error");
  return {std::move(compared), good};
}

JsonNode to_json(const PublishedCase& c, const Prediction& p) {
  const auto known = [&](auto v) { return p.reason.empty() ? JsonNode(v) : JsonNode(); };
  JsonNode n = JsonNode::object({{"id", c.id},
                                 {"source", c.source},
                                 {"file", c.file},
                                 {"cluster", c.how.cluster.name},
                                 {"device", c.how.cluster.device.name},
                                 {"what_if", c.how.what_if.text()},
                                 {"setup", c.setup},
                                 {"family", c.family()},
                                 {"size", c.size()},
                                 {"ranks", c.params.ranks},
                                 {"published_s", c.published_s},
                                 {"predicted_s", known(p.seconds)},
                                 {"low_s", known(p.low_s)},
                                 {"high_s", known(p.high_s)},
                                 {"error", known(p.seconds / c.published_s - 1)},
                                 {"inside", known(p.holds(c.published_s))},
                                 {"tolerance", c.tolerance},
                                 {"held_out", c.held_out},
                                 {"blind", c.blind},
                                 {kBeyondTable, p.beyond_table}});
  return n.set("reason", p.reason.empty() ? JsonNode() : JsonNode(p.reason));
}

ValidationSection judge_published(const std::vector<PublishedCase>& cases,
                                  const std::vector<Prediction>& predictions) {
  JsonNode list = JsonNode::array(), groups = JsonNode::array();
  for (size_t i = 0; i < cases.size(); ++i) list.push(to_json(cases[i], predictions[i]));
  const std::vector<PublishedErrors> errors = errors_of(cases, predictions);
  for (const PublishedErrors& e : errors)
    groups.push(JsonNode::object({{"name", e.name},
                                  {"cases", e.cases},
                                  {"median_rel_error", e.median},
                                  {"p95_rel_error", e.p95},
                                  {"bias", e.bias},
                                  {"inside", e.inside}}));
  const PublishedOrder order = order_of(cases, predictions);
  ValidationSection s;
  JsonNode goals = JsonNode::array();
  for (const PublishedGoal& goal : goals_of(errors, order)) {
    goals.push(JsonNode::object({{"name", goal.name},
                                 {"bound", goal.bound},
                                 {"least", goal.least},
                                 {"found", goal.found},
                                 {"reached", goal.reached}}));
    s.good &= goal.reached;
  }
  s.node.set("cases", list).set("groups", groups).set("goals", goals);
  s.node.set("pairs", order.pairs).set("pairs_in_order", order.right);
  return s;
}

}  // namespace longnet
