#include "run/shard_journal.h"

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/check.h"
#include "io/sha256.h"

namespace longnet {

namespace {

// The first had other names for the digests of heads, the second a header without a seal, the third
// no samples of the point apart from those of a unit, no slots and no poisoned unit, the fourth
// keys of each unit's own choice.
constexpr int kVersion = 5;

std::string header(const std::string& point, const std::string& plan, double share) {
  JsonNode n = JsonNode::object();
  return sealed(dump_json(n.set("journal", kVersion)
                              .set("point", point)
                              .set("plan", plan)
                              .set("share", share))) +
         "\n";
}

// Nothing to read where nothing stands yet.
std::ifstream open_regular(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, unknown)))
    DurableFile(path, O_RDONLY);  // refuses pipes, links, folders and devices
  return std::ifstream(path, std::ios::binary);
}

}  // namespace

double ShardJournal::share_of(const std::string& path, double otherwise) {
  std::ifstream old = open_regular(path);
  std::string line;
  if (!old || !std::getline(old, line) || old.eof()) return otherwise;
  const double share = parse_json(line, path).real("share");
  if (share > 0 && share <= 1 && seal_holds(line).value_or(false)) return share;
  throw UsageError("'", path, "', line 1: no header of this build\n  hint: remove the file: ",
                   "its shards are walked again");
}

ShardJournal::ShardJournal(const std::string& path, const std::string& point,
                           const std::string& plan, double share)
    : path_(path) {
  std::ifstream old = open_regular(path);
  const std::string first = header(point, plan, share);
  int64_t good_bytes = 0, number = 0;
  for (std::string line; old && std::getline(old, line);) {
    if (old.eof()) break;  // no newline: cut in half
    ++number;
    if (good_bytes == 0) {
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
    good_bytes += int64_t(line.size()) + 1;
  }
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
  std::ifstream file = open_regular(path);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.size() != sums.size() || sha256_hex(bytes) != lines_.back().sums_sha256)
    throw UsageError("'", path, "' holds other sums than the last line of '", path_,
                     "' says\n  hint: remove that file: its shards are walked again");
  std::ranges::copy(std::as_bytes(std::span(bytes)), sums.begin());
}

}  // namespace longnet
