#!/bin/sh
# Puts the runs of the detector where they were taken: two at each site. EVENTS in each: 300000.
set -e
events=${1:-300000}
cd "$(dirname "$0")"
place() {
    mkdir -p "storage/$2/events"
    python3 events.py "storage/$2/events/run$1" "$1" "$events"
    bursar replicas add "events/run$1" "storage/$2/events/run$1" --site "$2" --catalogue replicas.sqlite
}
place 1 bari
place 2 bari
place 3 padova
place 4 padova
place 5 catania
place 6 catania
