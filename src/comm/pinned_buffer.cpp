#include "trireme/comm/pinned_buffer.hpp"

#include "comm/shard_exchange_parts.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"

namespace trireme::comm {

LockedPages::LockedPages(std::byte* memory, int64_t bytes, std::string_view what) {
  const auto lock = device_support().lock_pages;
  if (bytes == 0 || !lock) return;
  if (lock(memory, bytes)) {
    locked_.reset(memory);
  } else {
    log::warning(base::text("the pages of ", what,
                            " could not be locked: copies between host and GPU will be slow"));
  }
}

void LockedPages::Unlock::operator()(std::byte* memory) const {
  device_support().unlock_pages(memory);
}

}  // namespace trireme::comm
