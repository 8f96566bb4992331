#include "run/shard_journal.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "io/sha256.h"
#include "json/json_reader.h"

namespace longnet {

namespace {

constexpr int kVersion = 5;  // raise it when older lines would be read differently

std::string header(const std::string& point, const std::string& plan, double share) {
  JsonNode n = JsonNode::object();
  return sealed(dump_json(n.set("journal", kVersion)
                              .set("point", point)
                              .set("plan", plan)
                              .set("share", share))) +
         "\n";
}

// "" where nothing stands yet.
std::string read_regular(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, unknown))) return "";
  const DurableFile regular(path, O_RDONLY);  // refuses pipes, links, folders and devices
  return read_file_text(path, "start a new run");
}

}  // namespace

double ShardJournal::share_of(const std::string& path, double otherwise) {
  const std::string text = read_regular(path);
  const size_t end = text.find('\n');
  if (end == std::string::npos) return otherwise;
  const std::string line = text.substr(0, end);
  const double share = parse_json(line, path).real("share");
  if (share > 0 && share <= 1 && seal_holds(line).value_or(false)) return share;
  throw UsageError("'", path, "', line 1: no header of this build\n  hint: remove the file: ",
                   "its shards are walked again");
}

ShardJournal::ShardJournal(const std::string& path, const std::string& point,
                           const std::string& plan, double share)
    : path_(path) {
  const std::string first = header(point, plan, share);
  int64_t number = 0;
  const int64_t good_bytes = take_lines(read_regular(path), [&](const std::string& line, bool) {
    if (++number == 1) {
      if (line + "\n" != first)
        throw UsageError(
            "'", path, "' holds the shards of another plan: ", line, "\n  now: ", first,
            "  hint: resume with the same memory limit, --replay and build, or start a new run");
    } else {
      try {
        read_fields(parse_json(line, path), lines_.emplace_back());
        if (!seal_holds(line).value_or(false))
          throw UsageError("the line was changed after it was written");
      } catch (const UsageError& e) {
        throw UsageError("'", path, "', line ", number, ": ", e.what(),
                         "\n  hint: cut the file off before this line: what stands there and after "
                         "it is walked again");
      }
    }
    return true;
  });
  file_ = std::make_unique<DurableFile>(path, O_WRONLY | O_CREAT | O_APPEND);
  file_->truncate(good_bytes);
  if (good_bytes == 0) file_->write_all(first);
}

void ShardJournal::append(UnitLine line, std::span<const std::byte> sums) {
  if (!sums.empty()) {
    const std::string_view bytes(reinterpret_cast<const char*>(sums.data()), sums.size());
    line.sums_sha256 = sha256_hex(bytes);
    DurableFile(sums_path(lines_.size()), O_WRONLY | O_CREAT | O_TRUNC).write_all(bytes);
  }
  file_->write_all(sealed(dump_json(write_fields(line))) + "\n");
  if (sums.empty() && !lines_.empty() && !lines_.back().sums_sha256.empty())
    for (const size_t last : {0, 1}) std::filesystem::remove(sums_path(last));
  lines_.push_back(std::move(line));
}

void ShardJournal::read_sums(std::span<std::byte> sums) const {
  if (sums.empty()) return;
  const std::string path = sums_path(lines_.size() - 1);
  const std::string bytes = read_regular(path);
  if (bytes.size() != sums.size() || sha256_hex(bytes) != lines_.back().sums_sha256)
    throw UsageError("'", path, "' holds other sums than the last line of '", path_,
                     "' says\n  hint: remove that file: its shards are walked again");
  std::ranges::copy(std::as_bytes(std::span(bytes)), sums.begin());
}

}  // namespace longnet
