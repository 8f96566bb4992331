// A file whose lines are on the disk when the call returns.
//
//   DurableFile lines("points.jsonl", O_WRONLY | O_CREAT | O_APPEND);
//   lines.write_all("{...}\n");     // written and synced: a kill right after loses nothing
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace longnet {

class DurableFile {
 public:
  // `flags` as for open(2). Every call throws Error when the system refuses.
  DurableFile(const std::string& path, int flags);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  void write_all(std::string_view text);
  void truncate(int64_t bytes);

 private:
  std::string path_;
  int fd_;
};

}  // namespace longnet
