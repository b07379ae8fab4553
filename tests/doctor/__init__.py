"""The doctor, on fixture trees and values that stand for machines."""
