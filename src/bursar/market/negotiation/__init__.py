"""How a price is found: posted, bargained, tendered, auctioned or shared out."""
