#include "io/durable_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/check.h"

namespace longnet {
namespace {

// Returns whether another path, or other rights, would help an open that failed with `error`.
bool is_of_the_path(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == ENOENT ||
         error == ENOTDIR || error == ENAMETOOLONG;
}

}  // namespace

// O_NONBLOCK: else a pipe in the place of a file waits for its other end.
DurableFile::DurableFile(const std::string& path, int flags)
    : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)) {
  struct stat file {};
  const bool other = fd_ < 0 ? errno == ELOOP || errno == ENXIO
                             : ::fstat(fd_, &file) != 0 || !S_ISREG(file.st_mode);
  if (other) {
    if (fd_ >= 0) ::close(fd_);
    throw UsageError("cannot open ", path,
                     ": it is no regular file\n  hint: move it away, or start a new run");
  }
  if (fd_ < 0 && is_of_the_path(errno))
    throw UsageError("cannot open ", path, ": ", std::strerror(errno));
  check(fd_ >= 0, "cannot open ", path, ": ", std::strerror(errno));
}

DurableFile::~DurableFile() { ::close(fd_); }

void DurableFile::write_all(std::string_view text) {
  const off_t begin = ::lseek(fd_, 0, SEEK_END);
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int why = errno;
      if (begin >= 0) truncate(begin);
      check(false, "cannot write ", path_, ": ", std::strerror(why));
    }
    text.remove_prefix(size_t(n));
  }
  check(::fsync(fd_) == 0, "fsync of ", path_, ": ", std::strerror(errno));
}

void DurableFile::truncate(int64_t bytes) {
  check(::ftruncate(fd_, bytes) == 0, "cannot cut ", path_, ": ", std::strerror(errno));
}

bool DurableFile::lock(bool alone) {
  return ::flock(fd_, (alone ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

int64_t take_lines(std::string_view text,
                   const std::function<bool(const std::string& line, bool is_last)>& take) {
  size_t taken = 0;
  for (size_t end; (end = text.find('\n', taken)) != std::string_view::npos; taken = end + 1)
    if (!take(std::string(text.substr(taken, end - taken)), end + 1 == text.size())) break;
  return int64_t(taken);
}

void replace_file(const std::string& folder, const std::string& name, const std::string& text) {
  const std::string target = (std::filesystem::path(folder) / name).string();
  const std::string temporary = target + ".tmp";
  DurableFile(temporary, O_WRONLY | O_CREAT | O_TRUNC).write_all(text);
  const int rc = std::rename(temporary.c_str(), target.c_str());
  check(rc == 0, "cannot rename ", temporary, ": ", std::strerror(errno));
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // some file systems do not open folders; the rename itself was done
  ::fsync(fd);
  ::close(fd);
}

}  // namespace longnet
