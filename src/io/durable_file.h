// A file whose lines are on the disk when the call returns.
//
//   DurableFile lines("points.jsonl", O_WRONLY | O_CREAT | O_APPEND);
//   lines.write_all("{...}\n");     // written and synced: a kill right after loses nothing
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace longnet {

class DurableFile {
 public:
  // `flags` as for open(2); links are not followed. Every call throws Error when the system
  // refuses; UsageError where the path is at fault: missing, not allowed, no regular file.
  DurableFile(const std::string& path, int flags);
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;
  ~DurableFile();

  // All of it or nothing: half a line, on a full disk, is cut off again.
  void write_all(std::string_view text);
  void truncate(int64_t bytes);
  // With others that share, or alone; false: someone else has it. Ends with this object, and where
  // the file system knows no locks there is none.
  bool lock(bool alone);

 private:
  std::string path_;
  int fd_;
};

// Calls take(line, is_last) for each line of `text` that ends with a newline, until one returns
// false. Returns the bytes of those taken: what stands behind was cut in half, or refused.
int64_t take_lines(std::string_view text,
                   const std::function<bool(const std::string& line, bool is_last)>& take);

// Readers see the old file or the new one, never half of it.
void replace_file(const std::string& folder, const std::string& name, const std::string& text);

}  // namespace longnet
