#include "io/shard_journal.h"

#include <fcntl.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "core/check.h"
#include "io/record_node.h"
#include "io/sha256.h"
#include "json/json_tree.h"
#include "json/text.h"

namespace longnet {
namespace {

JsonNode head_node(const ContentRecord& h) {
  JsonNode n = JsonNode::object();
  n.set("digest", to_hex(h.output_digest)).set("rows", h.rows).set("absent_rows", h.absent_rows);
  n.set("nan_values", h.nan_values).set("sum", h.sum).set("sum_squares", h.sum_squares);
  return n.set("min", h.min).set("max", h.max).set("lse_sum", h.lse_sum);
}

ContentRecord head_from(const JsonNode& n) {
  return {.input_digest = 0,
          .output_digest = from_hex(n.text("digest")),
          .rows = n.whole("rows"),
          .absent_rows = n.whole("absent_rows"),
          .nan_values = n.whole("nan_values"),
          .sum = n.real("sum"),
          .sum_squares = n.real("sum_squares"),
          .min = n.real("min"),
          .max = n.real("max"),
          .lse_sum = n.real("lse_sum")};
}

// JSON has no infinity: an error that is null was one.
double error_from(const JsonNode& n, std::string_view key) {
  const double v = n.real(key);
  return std::isnan(v) ? std::numeric_limits<double>::infinity() : v;
}

// Sums that journals did not hold at first.
double sum_from(const JsonNode& n, std::string_view key) {
  return n.find(key) == nullptr ? 0 : error_from(n, key);
}

std::string header(const std::string& point, const std::string& plan, double share) {
  JsonNode n = JsonNode::object();
  return dump_json(n.set("point", point).set("plan", plan).set("share", share)) + "\n";
}

constexpr std::string_view kSeal = ",\"sha256\":\"";

// {"walk":0,...} becomes {"walk":0,...,"sha256":"first 16 digits, of what stands before"}.
std::string sealed(const std::string& line) {
  const std::string body = line.substr(0, line.size() - 1);
  return concat(body, kSeal, sha256_hex(body).substr(0, 16), "\"}");
}

void check_seal(const std::string& line) {
  const size_t at = line.rfind(kSeal);
  if (at == std::string::npos || line != sealed(line.substr(0, at) + "}"))
    throw UsageError("the line was changed after it was written");
}

}  // namespace

std::string shard_line_to_json(const ShardLine& l) {
  JsonNode n = JsonNode::object(), seconds = JsonNode::object(), heads = JsonNode::array();
  for (const auto& [name, s] : l.seconds) seconds.set(name, s);
  for (const ContentRecord& h : l.heads) heads.push(head_node(h));
  n.set("walk", l.walk).set("rank", l.rank).set("first_batch", l.first_batch);
  n.set("batches", l.batches).set("finished_utc", l.finished_utc).set("seconds", seconds);
  n.set("held_bytes", l.held_bytes).set("resident_bytes", l.resident_bytes);
  n.set("unit_bytes", l.unit_bytes);
  n.set("kernel_flops_per_s", l.kernel_flops_per_s);
  n.set("received_bytes", l.received_bytes).set("attended_share", l.attended_share);
  n.set("input_digest", to_hex(l.input_digest)).set("heads", heads).set("queries", l.queries);
  n.set("difference", l.difference).set("norm", l.norm);
  n.set("spread_difference", l.spread_difference).set("spread_norm", l.spread_norm);
  return dump_json(n.set("worst_row", l.worst_row).set("worst_lse", l.worst_lse));
}

ShardLine shard_line_from_json(std::string_view text, const std::string& where) {
  const JsonNode n = parse_json(text, where);
  ShardLine l{.walk = int(n.whole("walk")),
              .rank = int(n.whole("rank")),
              .first_batch = n.whole("first_batch"),
              .batches = n.whole("batches", 1),
              .finished_utc = n.text("finished_utc"),
              .received_bytes = n.whole("received_bytes"),
              .held_bytes = n.whole("held_bytes"),
              .resident_bytes = n.whole("resident_bytes"),
              .unit_bytes = n.whole("unit_bytes"),
              .kernel_flops_per_s = n.real("kernel_flops_per_s"),
              .attended_share = n.real("attended_share"),
              .input_digest = from_hex(n.text("input_digest")),
              .queries = n.whole("queries"),
              .difference = error_from(n, "difference"),
              .norm = n.real("norm"),
              .spread_difference = sum_from(n, "spread_difference"),
              .spread_norm = sum_from(n, "spread_norm"),
              .worst_row = error_from(n, "worst_row"),
              .worst_lse = error_from(n, "worst_lse")};
  if (const JsonNode* seconds = n.find("seconds"))
    for (const std::string& name : seconds->keys) l.seconds[name] = seconds->real(name);
  for_each_item(n, "heads", [&](const JsonNode& h) { l.heads.push_back(head_from(h)); });
  return l;
}

double ShardJournal::share_of(const std::string& path, double otherwise) {
  std::ifstream old(path, std::ios::binary);
  std::string line;
  if (!old || !std::getline(old, line) || old.eof()) return otherwise;
  const JsonNode first = parse_json(line, path);
  const JsonNode* share = first.find("share");
  return share == nullptr ? otherwise : first.real("share");
}

ShardJournal::ShardJournal(const std::string& path, const std::string& point,
                           const std::string& plan, double share) {
  std::ifstream old(path, std::ios::binary);
  const std::string first = header(point, plan, share);
  int64_t good_bytes = 0, number = 0;
  for (std::string line; old && std::getline(old, line);) {
    if (old.eof()) break;  // no newline: cut in half
    ++number;
    if (good_bytes == 0) {
      if (line + "\n" != first)
        throw UsageError(concat("'", path, "' holds the shards of another plan: ", line,
                                "\n  now: ", first,
                                "  hint: resume with the same memory limit, "
                                "--replay and build, or start a new run"));
    } else {
      try {
        lines_.push_back(shard_line_from_json(line, path));
        check_seal(line);
      } catch (const UsageError& e) {
        throw UsageError(concat("'", path, "', line ", number, ": ", e.what(),
                                "\n  hint: cut the file off before this line: what stands there "
                                "and after it is walked again"));
      }
    }
    good_bytes += int64_t(line.size()) + 1;
  }
  file_ = std::make_unique<DurableFile>(path, O_WRONLY | O_CREAT | O_APPEND);
  file_->truncate(good_bytes);
  if (good_bytes == 0) file_->write_all(first);
}

void ShardJournal::append(const ShardLine& line) {
  file_->write_all(sealed(shard_line_to_json(line)) + "\n");
  lines_.push_back(line);
}

}  // namespace longnet
