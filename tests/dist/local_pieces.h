// The launches of a distributed plan as executors run them.
#pragma once

#include <variant>
#include <vector>

#include "backend/local_piece.h"
#include "verbatim/dist.h"

namespace verbatim::test {

/// Of all ranks, each in the sequence of its steps.
inline std::vector<LocalPiece> local_pieces(const DistPlan& plan) {
  std::vector<LocalPiece> pieces;
  for (const RankPlan& rank : plan.ranks)
    for (const Step& step : rank.steps) {
      const auto* compute = std::get_if<Compute>(&step);
      if (!compute) continue;
      const Room& room = rank.rooms[static_cast<size_t>(compute->room)];
      const PieceMemory memory{room.q, rank.kv, room.heads.begin, rank.kv_heads.begin};
      pieces.emplace_back(plan.whole, compute->piece(plan.whole), memory,
                          room.heads.end - room.heads.begin);
    }
  return pieces;
}

}  // namespace verbatim::test
