#include "run/shard_journal.h"

#include <fcntl.h>

#include <fstream>

#include "core/check.h"
#include "io/sha256.h"
#include "run/fill_record.h"

namespace longnet {

namespace {

constexpr int kVersion = 2;  // the first had other names for the digests of heads

std::string header(const std::string& point, const std::string& plan, double share) {
  JsonNode n = JsonNode::object();
  return dump_json(
             n.set("journal", kVersion).set("point", point).set("plan", plan).set("share", share)) +
         "\n";
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
        read_fields(parse_json(line, path), lines_.emplace_back());
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
  file_->write_all(sealed(dump_json(write_fields(line))) + "\n");
  lines_.push_back(line);
}

}  // namespace longnet
