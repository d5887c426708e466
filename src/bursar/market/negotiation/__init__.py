"""Implements trading procedures: posted prices, bargaining, tenders, auctions, shares."""
