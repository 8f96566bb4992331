#include <cmath>

#include "core/check.h"
#include "io/point_json.h"
#include "io/record.h"
#include "io/record_node.h"
#include "json/text.h"

namespace longnet {
namespace {

// Whole numbers without ".0" as long as a double holds them exactly.
JsonNode count_node(double v) {
  if (std::isfinite(v) && v == std::floor(v) && std::abs(v) < 0x1p53) return JsonNode(int64_t(v));
  return JsonNode(v);
}

JsonNode optional_node(const std::optional<int64_t>& v) { return v ? JsonNode(*v) : JsonNode(); }

std::optional<int64_t> optional_from(const JsonNode& n, std::string_view key) {
  const JsonNode* v = n.find(key);
  if (!v || v->kind != JsonNode::Kind::kInteger) return std::nullopt;
  return v->integer;
}

JsonNode timing_node(const TimingRecord& t) {
  JsonNode n = JsonNode::object();
  n.set("samples_s", to_array(t.samples_s)).set("median_s", t.median_s);
  n.set("ci_low_s", t.ci_low_s).set("ci_high_s", t.ci_high_s).set("ci_level", t.ci_level);
  n.set("p95_s", t.p95_s).set("min_s", t.min_s);
  return n.set("warmup", t.warmup).set("reduction", t.reduction);
}

TimingRecord timing_from(const JsonNode& n) {
  TimingRecord t;
  for_each_item(n, "samples_s", [&](const JsonNode& s) { t.samples_s.push_back(s.number); });
  t.median_s = n.real("median_s");
  t.ci_low_s = n.real("ci_low_s");
  t.ci_high_s = n.real("ci_high_s");
  t.ci_level = n.real("ci_level");
  t.p95_s = n.real("p95_s");
  t.min_s = n.real("min_s");
  t.warmup = int(n.whole("warmup"));
  t.reduction = n.text("reduction", t.reduction);
  return t;
}

JsonNode phases_node(const PhasesRecord& p) {
  JsonNode n = JsonNode::object();
  n.set("compute_s", p.compute_s).set("communication_s", p.communication_s);
  return n.set("exposed_communication_s", p.exposed_communication_s).set("merge_s", p.merge_s);
}

JsonNode ablations_node(const AblationsRecord& a) {
  JsonNode n = JsonNode::object();
  n.set("full_s", a.full_s).set("compute_only_s", a.compute_only_s);
  n.set("communication_only_s", a.communication_only_s).set("serialised_s", a.serialised_s);
  return n.set("single_attend_s", a.single_attend_s);
}

AblationsRecord ablations_from(const JsonNode& n) {
  return {.full_s = n.real("full_s"),
          .compute_only_s = n.real("compute_only_s"),
          .communication_only_s = n.real("communication_only_s"),
          .serialised_s = n.real("serialised_s"),
          .single_attend_s = n.real("single_attend_s")};
}

JsonNode work_node(const WorkRecord& w) {
  JsonNode n = JsonNode::object();
  n.set("tokens", w.tokens).set("flops", count_node(w.flops));
  n.set("paper_macs", count_node(w.paper_macs)).set("flops_per_s", w.flops_per_s);
  n.set("share_of_peak", w.share_of_peak).set("coverage", to_array(w.coverage));
  return n.set("balance", w.balance);
}

WorkRecord work_from(const JsonNode& n) {
  WorkRecord w;
  w.tokens = n.whole("tokens");
  w.flops = n.real("flops");
  w.paper_macs = n.real("paper_macs");
  w.flops_per_s = n.real("flops_per_s");
  w.share_of_peak = n.real("share_of_peak");
  for_each_item(n, "coverage", [&](const JsonNode& c) { w.coverage.push_back(c.number); });
  w.balance = n.real("balance");
  return w;
}

JsonNode comm_node(const CommRecord& c) {
  JsonNode n = JsonNode::object();
  n.set("counted_bytes_per_rank", optional_node(c.counted_bytes_per_rank));
  n.set("predicted_bytes_per_rank", optional_node(c.predicted_bytes_per_rank));
  n.set("counted_messages_per_rank", optional_node(c.counted_messages_per_rank));
  n.set("predicted_messages_per_rank", optional_node(c.predicted_messages_per_rank));
  return c.collectives_used.empty() ? n : n.set("collectives_used", to_array(c.collectives_used));
}

JsonNode memory_node(const MemoryRecord& m) {
  JsonNode tags = JsonNode::object(), n = JsonNode::object();
  for (const auto& [tag, bytes] : m.by_tag) tags.set(tag, bytes);
  n.set("measured_peak_bytes", optional_node(m.measured_peak_bytes));
  n.set("predicted_peak_bytes", optional_node(m.predicted_peak_bytes));
  n.set("by_tag", tags);
  return m.device_bytes ? n.set("device_bytes", *m.device_bytes) : n;
}

MemoryRecord memory_from(const JsonNode& n) {
  MemoryRecord m;
  m.measured_peak_bytes = optional_from(n, "measured_peak_bytes");
  m.predicted_peak_bytes = optional_from(n, "predicted_peak_bytes");
  m.device_bytes = optional_from(n, "device_bytes");
  if (const JsonNode* tags = n.find("by_tag"))
    for (size_t i = 0; i < tags->keys.size(); ++i) m.by_tag[tags->keys[i]] = tags->items[i].integer;
  return m;
}

JsonNode check_node(const CheckRecord& c) {
  JsonNode n = JsonNode::object();
  n.set("status", c.status);
  n.set("reference", c.reference.empty() ? JsonNode() : JsonNode(c.reference));
  n.set("max_rel_error", c.max_rel_error).set("rel_l2_error", c.rel_l2_error);
  n.set("spread_rel_l2_error", c.spread_rel_l2_error);
  return n.set("queries", c.queries).set("tolerance", c.tolerance);
}

CheckRecord check_from(const JsonNode& n) {
  CheckRecord c;
  c.status = n.text("status", c.status);
  c.reference = n.text("reference");
  c.max_rel_error = n.real("max_rel_error");
  c.rel_l2_error = n.real("rel_l2_error");
  c.spread_rel_l2_error = n.real("spread_rel_l2_error");
  c.queries = n.whole("queries");
  c.tolerance = n.real("tolerance");
  return c;
}

JsonNode content_node(const ContentRecord& c) {
  JsonNode n = JsonNode::object();
  n.set("input_digest", to_hex(c.input_digest)).set("output_digest", to_hex(c.output_digest));
  n.set("rows", c.rows).set("absent_rows", c.absent_rows).set("nan_values", c.nan_values);
  n.set("sum", c.sum).set("sum_squares", c.sum_squares).set("min", c.min).set("max", c.max);
  return n.set("lse_sum", c.lse_sum);
}

ContentRecord content_from(const JsonNode& n) {
  return {.input_digest = from_hex(n.text("input_digest")),
          .output_digest = from_hex(n.text("output_digest")),
          .rows = n.whole("rows"),
          .absent_rows = n.whole("absent_rows"),
          .nan_values = n.whole("nan_values"),
          .sum = n.real("sum"),
          .sum_squares = n.real("sum_squares"),
          .min = n.real("min"),
          .max = n.real("max"),
          .lse_sum = n.real("lse_sum")};
}

JsonNode timeline_node(const std::vector<TimelineEntry>& timeline) {
  JsonNode list = JsonNode::array();
  for (const TimelineEntry& e : timeline) {
    JsonNode n = JsonNode::object();
    n.set("rank", e.rank).set("lane", e.lane).set("op", e.op);
    n.set("begin_s", e.begin_s).set("end_s", e.end_s);
    if (!e.detail.empty()) n.set("detail", e.detail);
    list.push(n);
  }
  return list;
}

JsonNode section(const JsonNode& node, std::string_view key) {
  const JsonNode* n = node.find(key);
  return n ? *n : JsonNode::object();
}

}  // namespace

JsonNode record_to_node(const PointRecord& r) {
  JsonNode n = JsonNode::object(), ranks = JsonNode::array();
  for (const RankRecord& rank : r.per_rank) {
    JsonNode item = JsonNode::object();
    item.set("rank", rank.rank).set("median_s", rank.median_s);
    item.set("pairs", count_node(rank.pairs));
    if (rank.memory_bytes) item.set("memory_bytes", *rank.memory_bytes);
    ranks.push(item);
  }
  n.set("id", r.id).set("source", to_string(r.source)).set("status", to_string(r.status));
  n.set("reason", r.reason.empty() ? JsonNode() : JsonNode(r.reason));
  n.set("params", params_to_node(r.params)).set("timing", timing_node(r.timing));
  n.set("phases", phases_node(r.phases)).set("per_rank", ranks).set("work", work_node(r.work));
  n.set("comm", comm_node(r.comm)).set("memory", memory_node(r.memory));
  n.set("check", check_node(r.check));
  if (r.ablations) n.set("ablations", ablations_node(*r.ablations));
  if (r.content) n.set("content", content_node(*r.content));
  if (!r.metrics.empty()) {
    JsonNode metrics = JsonNode::object();
    for (const auto& [tag, value] : r.metrics) metrics.set(tag, value);
    n.set("metrics", metrics);
  }
  if (!r.timeline.empty()) n.set("timeline", timeline_node(r.timeline));
  return n;
}

PointRecord record_from_node(const JsonNode& n) {
  if (!n.is_object() || n.text("id").empty() || !n.find("params"))
    throw UsageError(
        concat(n.where(), ": this is no point of a result: it has no id or no params"));
  PointRecord r;
  r.id = n.text("id");
  r.source = parse_source(n.text("source"));
  r.status = parse_status(n.text("status"));
  r.reason = n.text("reason");
  r.params = params_from_node(*n.find("params"));
  r.timing = timing_from(section(n, "timing"));
  const JsonNode phases = section(n, "phases"), comm = section(n, "comm");
  r.phases = {.compute_s = phases.real("compute_s"),
              .communication_s = phases.real("communication_s"),
              .exposed_communication_s = phases.real("exposed_communication_s"),
              .merge_s = phases.real("merge_s")};
  for_each_item(n, "per_rank", [&](const JsonNode& rank) {
    r.per_rank.push_back({.rank = int(rank.whole("rank")),
                          .median_s = rank.real("median_s"),
                          .pairs = rank.real("pairs"),
                          .memory_bytes = optional_from(rank, "memory_bytes")});
  });
  r.work = work_from(section(n, "work"));
  r.comm = {.counted_bytes_per_rank = optional_from(comm, "counted_bytes_per_rank"),
            .predicted_bytes_per_rank = optional_from(comm, "predicted_bytes_per_rank"),
            .counted_messages_per_rank = optional_from(comm, "counted_messages_per_rank"),
            .predicted_messages_per_rank = optional_from(comm, "predicted_messages_per_rank")};
  for_each_item(comm, "collectives_used",
                [&](const JsonNode& used) { r.comm.collectives_used.push_back(used.string); });
  r.memory = memory_from(section(n, "memory"));
  r.check = check_from(section(n, "check"));
  if (const JsonNode* a = n.find("ablations"); a && a->is_object())
    r.ablations = ablations_from(*a);
  if (const JsonNode* c = n.find("content"); c && c->is_object()) r.content = content_from(*c);
  const JsonNode metrics = section(n, "metrics");
  for (const std::string& tag : metrics.keys) r.metrics[tag] = metrics.real(tag);
  for_each_item(n, "timeline", [&](const JsonNode& e) {
    r.timeline.push_back({.rank = int(e.whole("rank")),
                          .lane = e.text("lane"),
                          .op = e.text("op"),
                          .begin_s = e.real("begin_s"),
                          .end_s = e.real("end_s"),
                          .detail = e.text("detail")});
  });
  return r;
}

std::string record_to_json(const PointRecord& record, int indent) {
  return dump_json(record_to_node(record), indent);
}

PointRecord record_from_json(std::string_view text) {
  return record_from_node(parse_json(text, "record"));
}

}  // namespace longnet
