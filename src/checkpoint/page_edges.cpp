#include "page_edges.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::checkpoint {
int64_t agreed_page_bytes(const comm::CommView& comm) {
  return comm.max<int64_t>(::sysconf(_SC_PAGESIZE));
}

std::vector<PageEdge> edges_of_my_pages(const comm::CommView& comm,
                                        const std::vector<PageEdge>& mine, int64_t page_bytes) {
  std::vector<std::vector<PageEdge>> to(static_cast<size_t>(comm.size()));
  for (const PageEdge& edge : mine)
    to[static_cast<size_t>(edge.offset / page_bytes % comm.size())].push_back(edge);
  std::vector<PageEdge> received = comm.all_to_all_values(to);
  std::sort(received.begin(), received.end(),
            [](const PageEdge& a, const PageEdge& b) { return a.offset < b.offset; });
  std::vector<PageEdge> joined;
  for (PageEdge& edge : received) {
    if (!joined.empty() && joined.back().end() == edge.offset) {
      joined.back().bytes += edge.bytes;
    } else {
      joined.push_back(std::move(edge));
    }
  }
  return joined;
}

}  // namespace trireme::checkpoint
